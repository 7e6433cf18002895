"""Writer and reader together: every byte back where it belongs, from every cut, or refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsync.errors import EngineError
from kvsync.pack import ArtifactReader, ArtifactWriter, Target
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.errors import IntegrityError, MismatchError
from kvsync_protocol.layout import AnyGroup, DType, Group, LayerKind, Layout, StateGroup, StatePart
from kvsync_protocol.leaves import Leaf, LeafTable

ARTIFACT = ArtifactId(sha256(b"an artifact"))


@dataclass
class ChunkDirectory:
    """Chunk files in a directory: a ChunkSink and a ChunkSource."""

    path: Path
    leaves: list[Leaf] = field(default_factory=list)
    doubted: list[Digest] = field(default_factory=list)

    def append(self, data: memoryview) -> Leaf:
        leaf = Leaf(Digest(hashlib.sha256(data).digest()), data.nbytes)
        (self.path / leaf.digest.hex).write_bytes(data)
        self.leaves.append(leaf)
        return leaf

    def open_chunk(self, digest: Digest) -> int:
        return os.open(self.path / digest.hex, os.O_RDONLY)

    def doubt_chunk(self, digest: Digest) -> bool:
        self.doubted.append(digest)
        return True

    def file(self, index: int) -> Path:
        return self.path / self.leaves[index].digest.hex

    def reader(self, layout: Layout) -> ArtifactReader:
        return ArtifactReader(self, ARTIFACT, layout, LeafTable.of(self.leaves), threads=2)


State = dict[tuple[int, str], np.ndarray]


def write(directory: ChunkDirectory, layout: Layout, seed: int = 0) -> tuple[State, bytes]:
    """Random state of the whole document, written block by block."""
    random = np.random.default_rng(seed)
    state: State = {}
    for group in layout.groups:
        for layer, part, shape in shapes(group, layout.tokens):
            # Of a state there is another one at every block's end: `[block, bytes]`.
            shape = (layout.blocks, *shape[1:]) if isinstance(group, StateGroup) else shape
            state[layer, part] = random.integers(0, 256, shape, dtype=np.uint8)
    fixed = {layer for group in layout.groups if isinstance(group, StateGroup) for layer in group.layers}
    writer = ArtifactWriter(directory, layout)
    for block in range(layout.blocks):
        start, stop = layout.block_range(block)
        parts = {
            name: np.ascontiguousarray(whole[block : block + 1] if name[0] in fixed else whole[:, start:stop])
            for name, whole in state.items()
        }
        writer.write_block(block, {name: memoryview(part) for name, part in parts.items()})
    logits = random.bytes(layout.vocab * layout.logits_dtype.size)
    writer.write_logits(memoryview(logits))
    assert len(directory.leaves) == layout.leaf_count
    return state, logits


def shapes(group: AnyGroup, tokens: int) -> Iterator[tuple[int, str, tuple[int, ...]]]:
    """Layer, part and shape in bytes, `[heads, tokens, bytes]` or `[1, bytes]`."""
    for layer in group.layers:
        if isinstance(group, StateGroup):
            yield from ((layer, part.name, (1, part.size)) for part in group.parts)
            continue
        for part, dim in (("key", group.key_dim), ("value", group.value_dim)):
            yield layer, part, (group.kv_heads, tokens, dim * group.dtype.size)


def room(layout: Layout, position: int) -> tuple[State, dict[tuple[int, str], Target]]:
    """Empty arrays of the shapes that a graft at `position` restores."""
    arrays: State = {}
    targets: dict[tuple[int, str], Target] = {}
    for group in layout.groups:
        start = position if isinstance(group, StateGroup) else group.first_needed(position)
        for layer, part, shape in shapes(group, position - start):
            arrays[layer, part] = np.zeros(shape, dtype=np.uint8)
            data = memoryview(arrays[layer, part]).cast("B")
            states = isinstance(group, StateGroup)
            targets[layer, part] = (
                Target.of_state(data, position) if states else Target(data, start, position, shape[1])
            )
    return arrays, targets


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    block_tokens = draw(st.sampled_from([1, 3, 8, 16]))
    dtype = draw(st.sampled_from(list(DType)))
    dims = st.integers(1, 5)
    full = Group("full", LayerKind.FULL, (0, 2), draw(dims), draw(dims), draw(dims), dtype)
    window = draw(st.integers(2, 40))
    sliding = Group("sliding", LayerKind.SLIDING, (1, 3, 4), draw(dims), draw(dims), draw(dims), dtype, window)
    parts = (StatePart("conv0", (draw(dims), draw(dims)), DType.BF16), StatePart("state0", (draw(dims),), DType.F32))
    states = StateGroup("states", (5, 6), parts, draw(st.integers(1, 4)))
    groups: list[AnyGroup] = [full, sliding]
    if draw(st.booleans()):
        groups.insert(draw(st.integers(0, 2)), states)
    return Layout(draw(st.integers(1, 60)), block_tokens, tuple(groups), draw(st.integers(1, 9)), dtype)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(layout=layouts(), data=st.data())
def test_every_cut_restores_exactly_the_written_state(
    layout: Layout, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = ChunkDirectory(tmp_path_factory.mktemp("chunks"))
    state, logits = write(directory, layout)
    cuts = [*range(layout.block_tokens, layout.tokens, layout.block_tokens), layout.tokens]
    position = data.draw(st.sampled_from([cut for cut in cuts if layout.restorable(cut) == cut]))
    arrays, targets = room(layout, position)
    directory.reader(layout).restore(position, targets)
    last = -(-position // layout.block_tokens) - 1
    for group in layout.groups:
        for layer, part, _ in shapes(group, 1):
            whole = state[layer, part]
            states = isinstance(group, StateGroup)
            kept = whole[last : last + 1] if states else whole[:, group.first_needed(position) : position]
            assert np.array_equal(arrays[layer, part], kept)
    assert directory.reader(layout).logits() == logits


WIDE = Layout(
    1_000,
    256,
    (
        Group("full", LayerKind.FULL, (0, 1), 2, 1100, 1100, DType.F32),
        Group("sliding", LayerKind.SLIDING, (2,), 1, 64, 64, DType.F32, 300),
    ),
    77,
    DType.F32,
)
"""Block files of several chunks, so that pieces end inside rows and headers stand in the first only."""


@pytest.fixture
def wide(tmp_path: Path) -> tuple[ChunkDirectory, State]:
    directory = ChunkDirectory(tmp_path)
    state, _ = write(directory, WIDE)
    return directory, state


def test_files_of_several_chunks_come_back_whole(wide: tuple[ChunkDirectory, State]) -> None:
    directory, state = wide
    assert WIDE.leaf_count > WIDE.blocks * 2 + 1
    for position in (256, 768, 1_000):
        arrays, targets = room(WIDE, position)
        report = directory.reader(WIDE).restore(position, targets)
        assert all(np.array_equal(a[:, -1], state[n][:, position - 1]) for n, a in arrays.items())
        assert np.array_equal(arrays[1, "value"], state[1, "value"][:, :position])
        assert report.bytes == sum(s.size for s in WIDE.chunks_for_graft(position, logits=False))


@pytest.mark.parametrize("damage", ["flip first", "flip last", "truncate", "append", "empty"])
def test_a_damaged_chunk_is_named_and_refused(wide: tuple[ChunkDirectory, State], damage: str) -> None:
    directory, _ = wide
    path = directory.file(1)
    raw = path.read_bytes()
    changed = {
        "flip first": bytes([raw[0] ^ 1]) + raw[1:],
        "flip last": raw[:-1] + bytes([raw[-1] ^ 128]),
        "truncate": raw[:-1],
        "append": raw + b"\0",
        "empty": b"",
    }[damage]
    path.write_bytes(changed)
    with pytest.raises(IntegrityError) as refused:
        directory.reader(WIDE).restore(1_000, room(WIDE, 1_000)[1])
    assert (refused.value.code, refused.value.fields["chunk"]) == ("integrity.chunk", 1)
    with pytest.raises(IntegrityError):
        directory.reader(WIDE).verify()


def test_chunks_outside_the_window_are_not_read(wide: tuple[ChunkDirectory, State]) -> None:
    directory, _ = wide
    outside = [s.index for s in WIDE.chunks() if s.group == "sliding" and s.block == 0]
    directory.file(outside[0]).unlink()
    directory.reader(WIDE).restore(1_000, room(WIDE, 1_000)[1])
    with pytest.raises(FileNotFoundError):
        directory.reader(WIDE).restore(256, room(WIDE, 256)[1])


def test_a_signed_file_of_another_geometry_is_refused(tmp_path: Path) -> None:
    """The digest is right, but the header speaks of other layers."""
    directory = ChunkDirectory(tmp_path)
    group = Group("full", LayerKind.FULL, (0, 1), 1, 4, 4, DType.F32)
    layout = Layout(8, 8, (group,), 5, DType.F32)
    write(directory, layout)
    raw = bytearray(directory.file(0).read_bytes())
    at = raw.index(b"layers.1.key")
    raw[at : at + 12] = b"layers.9.key"
    directory.leaves[0] = Leaf(sha256(raw), len(raw))
    directory.file(0).write_bytes(raw)
    with pytest.raises(IntegrityError) as refused:
        directory.reader(layout).restore(8, room(layout, 8)[1])
    assert refused.value.code == "integrity.header"


@pytest.mark.parametrize("position", [0, -256, 255, 1_001, 1_024])
def test_positions_without_state_are_refused(wide: tuple[ChunkDirectory, State], position: int) -> None:
    with pytest.raises(MismatchError) as refused:
        wide[0].reader(WIDE).restore(position, room(WIDE, 256)[1])
    assert refused.value.code == "mismatch.position"


def test_targets_of_another_shape_are_refused_before_a_byte_is_read(wide: tuple[ChunkDirectory, State]) -> None:
    arrays, targets = room(WIDE, 512)
    missing = {name: target for name, target in targets.items() if name != (2, "key")}
    short = targets | {(0, "key"): Target(targets[0, "key"].data[:-1], 0, 512, 512)}
    shifted = targets | {(2, "key"): Target(targets[2, "key"].data, 0, 512, 512)}
    extra = targets | {(3, "key"): targets[2, "key"]}
    for wrong in (missing, short, shifted, extra):
        with pytest.raises(EngineError) as refused:
            wide[0].reader(WIDE).restore(512, wrong)
        assert refused.value.code == "engine.target"
    assert not any(array.any() for array in arrays.values())


def test_a_position_without_a_snapshot_or_a_target_of_another_state_is_refused(tmp_path: Path) -> None:
    directory = ChunkDirectory(tmp_path)
    states = StateGroup("states", (1,), (StatePart("conv0", (3, 2), DType.BF16),), 2)
    layout = Layout(29, 8, (Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.F32), states), 5, DType.F32)
    write(directory, layout)
    with pytest.raises(MismatchError) as none:
        directory.reader(layout).restore(8, room(layout, 8)[1])
    assert none.value.code == "mismatch.position"
    targets = room(layout, 16)[1]
    one = targets[1, "conv0"].data
    for wrong in (Target.of_state(one[:-1], 16), Target.of_state(one, 8), Target(one, 0, 16, 16)):
        with pytest.raises(EngineError) as refused:
            directory.reader(layout).restore(16, targets | {(1, "conv0"): wrong})
        assert refused.value.code == "engine.target"
    directory.reader(layout).restore(16, targets)


def test_blocks_out_of_order_or_of_another_size_are_refused(tmp_path: Path) -> None:
    group = Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.F32)
    writer = ArtifactWriter(ChunkDirectory(tmp_path), Layout(16, 8, (group,), 5, DType.F32))
    block = {(0, "key"): memoryview(bytes(128)), (0, "value"): memoryview(bytes(128))}
    wrong = [
        lambda: writer.write_block(1, block),
        lambda: writer.write_block(0, block | {(0, "key"): memoryview(bytes(127))}),
        lambda: writer.write_block(0, {(0, "key"): memoryview(bytes(128))}),
        lambda: writer.write_logits(memoryview(bytes(20))),
    ]
    for write_wrong in wrong:
        with pytest.raises(EngineError) as refused:
            write_wrong()
        assert refused.value.code == "engine.capture"
    writer.write_block(0, block)
