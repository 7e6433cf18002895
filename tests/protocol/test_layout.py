"""Layouts: every byte stands somewhere, once, and a graft is told exactly what it needs."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.blockfile import state_file
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.group import HEADER_UNIT
from kvsync_protocol.layout import (
    LOGITS_GROUP,
    AnyGroup,
    BlockFile,
    DType,
    Group,
    LayerKind,
    Layout,
    StateGroup,
    StatePart,
    block_file,
    logits_file,
)
from kvsync_protocol.limits import (
    MAX_CHUNK_BYTES,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEAVES,
    MAX_SNAPSHOT_BLOCKS,
    MAX_STATE_NUMBERS,
    MAX_STATE_PARTS,
    MAX_TOKENS,
)
from tests.protocol.strategies import layouts

FULL = Group("full", LayerKind.FULL, (0,), 2, 3, 5, DType.F32)
STATES = StateGroup(
    "recurrent", (1,), (StatePart("conv0", (4, 3), DType.BF16), StatePart("state0", (2, 3, 5), DType.F32)), 4
)


def ends_with_states(layout: Layout, group: StateGroup, block: int) -> bool:
    """SPEC 3.2, said once more: after every n-th full block, after the last full one, and at the end."""
    full = layout.tokens // layout.block_tokens
    return block >= full - 1 or (block + 1) % group.every == 0


@given(layouts())
def test_chunks_cover_every_file_densely_and_in_order(layout: Layout) -> None:
    spans = list(layout.chunks())
    files = []
    for block in range(layout.blocks):
        due = [
            (group.name, not isinstance(group, StateGroup) or (block + 1) % group.every == 0)
            for group in layout.groups
            if not isinstance(group, StateGroup) or ends_with_states(layout, group, block)
        ]
        late = [name for name, regular in due if not regular] if block < layout.full_blocks else []
        files += [(block, name) for name, _ in due if name not in late] + [(block, name) for name in late]
    files.append((layout.blocks, LOGITS_GROUP))
    assert [span.index for span in spans] == list(range(layout.leaf_count))
    seen = []
    for block, group in files:
        mine = [span for span in spans if (span.block, span.group) == (block, group)]
        assert [span.offset for span in mine] == list(range(0, layout.file(block, group).size, MAX_CHUNK_BYTES))
        assert sum(span.size for span in mine) == layout.file(block, group).size
        seen += mine
    assert seen == spans
    assert sum(span.size for span in spans) == layout.total_bytes


@given(layouts())
def test_blocks_cover_every_token_once(layout: Layout) -> None:
    ranges = [layout.block_range(block) for block in range(layout.blocks)]
    assert [token for start, stop in ranges for token in range(start, stop)] == list(range(layout.tokens))


@given(layouts())
def test_tensors_stand_densely_behind_the_header(layout: Layout) -> None:
    for block in range(layout.blocks):
        for group in map(layout.group, layout.groups_of(block)):
            file = layout.file(block, group.name)
            at = len(file.header)
            assert at % 64 == 0
            kinds = dtypes(group)
            for tensor in file.tensors:
                assert tensor.offset == at
                assert tensor.size == np.prod(tensor.shape) * kinds[tensor.part].size
                at += tensor.size
            own = group.file_size if isinstance(group, StateGroup) else group.file_size(file.tensors[0].shape[1])
            assert at == file.size == own


def dtypes(group: AnyGroup) -> dict[str, DType]:
    if isinstance(group, StateGroup):
        return {part.name: part.dtype for part in group.parts}
    return dict.fromkeys(("key", "value"), group.dtype)


def places(layout: Layout) -> list[int]:
    """Where a graft can begin, tried one by one."""
    cuts = sorted({layout.tokens, *range(0, layout.tokens + 1, layout.block_tokens)})
    groups = [group for group in layout.groups if isinstance(group, StateGroup)]
    return [
        cut
        for cut in cuts
        if cut in (0, layout.tokens)
        or all(ends_with_states(layout, group, cut // layout.block_tokens - 1) for group in groups)
    ]


@given(layouts(), st.data())
def test_a_graft_needs_all_of_full_groups_the_window_of_others_and_one_snapshot(
    layout: Layout, data: st.DataObject
) -> None:
    position = data.draw(st.sampled_from(places(layout)))
    logits = data.draw(st.booleans())
    found = list(layout.chunks_for_graft(position, logits=logits))
    everything = list(layout.chunks())
    assert set(found) <= set(everything)
    assert found == sorted(found, key=lambda span: span.index)
    assert any(span.group == LOGITS_GROUP for span in found) == logits
    last = -(-position // layout.block_tokens) - 1
    for group in layout.groups:
        have = {span.block for span in found if span.group == group.name}
        if isinstance(group, StateGroup):
            assert have == ({last} if position else set())
            continue
        first = 0 if group.window is None else max(0, position - group.window + 1)
        assert have == {token // layout.block_tokens for token in range(first, position)}


@given(layouts(), st.integers(-3, 70))
def test_every_position_is_rounded_down_to_a_place_with_all_states(layout: Layout, position: int) -> None:
    best = max([place for place in places(layout) if place <= position], default=0)
    assert layout.restorable(position) == best
    if position != best:
        with pytest.raises(ValueError, match="no cut"):
            list(layout.chunks_for_graft(position, logits=False))


@given(layouts(), st.integers(1, 30))
def test_a_longer_document_has_the_same_leaves_for_the_same_full_blocks(layout: Layout, more: int) -> None:
    longer = replace(layout, tokens=layout.tokens + more)
    shared = layout.full_leaves
    assert list(longer.chunks())[:shared] == list(layout.chunks())[:shared]
    assert longer.full_leaves >= shared
    assert [longer.leading_leaves(blocks) for blocks in range(layout.full_blocks + 1)] == [
        layout.leading_leaves(blocks) for blocks in range(layout.full_blocks + 1)
    ]


@given(layouts())
def test_leading_leaves_are_those_of_whole_blocks(layout: Layout) -> None:
    spans = list(layout.chunks())
    for blocks in range(layout.full_blocks + 1):
        count = layout.leading_leaves(blocks)
        assert all(span.block < blocks for span in spans[:count])
        behind = {span.group for span in spans[count:] if span.block < blocks}
        assert behind <= (
            {group.name for group in layout.groups if isinstance(group, StateGroup)} if blocks else set()
        )
        assert blocks == layout.full_blocks or not behind


@given(layouts())
def test_the_first_block_has_the_first_leaves(layout: Layout) -> None:
    spans, count = list(layout.chunks()), layout.first_block_leaves
    assert all(span.block == 0 or span.group == LOGITS_GROUP for span in spans[:count])
    attention = {group.name for group in layout.groups if isinstance(group, Group)}
    assert not any(span.block == 0 and span.group in attention for span in spans[count:])


def test_a_snapshot_that_only_the_end_puts_there_stands_behind_the_block() -> None:
    layout = Layout(26, 4, (STATES, replace(FULL, layers=(0,))), 3, DType.F32)
    names = [(span.block, span.group) for span in layout.chunks()]
    assert names == [
        (0, "full"),
        (1, "full"),
        (2, "full"),
        (3, "recurrent"),
        (3, "full"),
        (4, "full"),
        (5, "full"),
        (5, "recurrent"),
        (6, "recurrent"),
        (6, "full"),
        (7, "logits"),
    ]
    assert layout.full_leaves == 7
    assert [layout.restorable(position) for position in range(0, 28, 3)] == [0, 0, 0, 0, 0, 0, 16, 16, 24, 26]


def test_files_above_the_limit_are_cut_into_chunks_of_four_mebibytes() -> None:
    wide = Group("full", LayerKind.FULL, (0,), 1, MAX_HEAD_DIM, MAX_HEAD_DIM, DType.F32)
    spans = list(Layout(100, 64, (wide,), 8, DType.F32).chunks())
    assert [(span.block, span.size) for span in spans] == [
        (0, MAX_CHUNK_BYTES),
        (0, MAX_CHUNK_BYTES),
        (0, 3 * HEADER_UNIT),
        (1, MAX_CHUNK_BYTES),
        (1, 36 * 2 * MAX_HEAD_DIM * 4 - MAX_CHUNK_BYTES + 3 * HEADER_UNIT),
        (2, 2 * HEADER_UNIT + 32),
    ]


@pytest.mark.parametrize("position", [-1, 1, 5, 7, 8])
def test_a_graft_at_a_place_that_is_no_cut_is_refused(position: int) -> None:
    layout = Layout(6, 4, (FULL,), 3, DType.F32)
    with pytest.raises(ValueError, match="no cut"):
        list(layout.chunks_for_graft(position, logits=False))


@pytest.mark.parametrize(("block", "group"), [(-1, "full"), (2, "full"), (0, "logits"), (0, "other"), (3, "logits")])
def test_a_file_that_does_not_exist_is_a_key_error(block: int, group: str) -> None:
    with pytest.raises(KeyError):
        Layout(6, 4, (FULL,), 3, DType.F32).file(block, group)


def test_a_group_can_be_asked_for_by_name() -> None:
    layout = Layout(6, 4, (FULL,), 3, DType.F32)
    assert layout.group("full") == FULL
    with pytest.raises(KeyError):
        layout.group("sliding")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"window": 4}, "layout.window"),
        ({"kind": LayerKind.SLIDING}, "layout.window"),
        ({"kind": LayerKind.SLIDING, "window": 0}, "layout.window"),
        ({"kind": LayerKind.SLIDING, "window": 1}, "layout.window"),
        ({"kind": LayerKind.SLIDING, "window": MAX_TOKENS + 1}, "layout.window"),
        ({"kv_heads": 0}, "layout.shape"),
        ({"kv_heads": MAX_HEADS + 1}, "layout.shape"),
        ({"key_dim": -1}, "layout.shape"),
        ({"value_dim": MAX_HEAD_DIM + 1}, "layout.shape"),
        ({"layers": (-1,)}, "layout.layers"),
        ({"layers": (MAX_LAYERS,)}, "layout.layers"),
        ({"name": "a-b"}, "layout.name"),
        ({"name": "а"}, "layout.name"),
        ({"name": "a" * 65}, "layout.name"),
        ({"name": "logits"}, "layout.name"),
    ],
)
def test_an_impossible_group_is_refused_however_it_is_made(change: dict[str, object], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(FULL, **change)  # type: ignore[arg-type]
    assert caught.value.code == code


PART = StatePart("conv0", (4, 3), DType.BF16)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"layers": ()}, "layout.layers"),
        ({"layers": (2, 1)}, "layout.layers"),
        ({"name": "a/b"}, "layout.name"),
        ({"every": 0}, "layout.shape"),
        ({"every": MAX_SNAPSHOT_BLOCKS + 1}, "layout.shape"),
        ({"parts": ()}, "layout.parts"),
        ({"parts": (PART, PART)}, "layout.parts"),
        ({"parts": tuple(replace(PART, name=f"p{n}") for n in range(MAX_STATE_PARTS + 1))}, "layout.parts"),
    ],
)
def test_an_impossible_group_of_states_is_refused(change: dict[str, object], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(STATES, **change)  # type: ignore[arg-type]
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"name": "key"}, "layout.name"),
        ({"name": "value"}, "layout.name"),
        ({"name": ""}, "layout.name"),
        ({"name": "Conv"}, "layout.name"),
        ({"name": "conv/0"}, "layout.name"),
        ({"name": "ninechars"}, "layout.name"),
        ({"shape": ()}, "layout.shape"),
        ({"shape": (1, 0)}, "layout.shape"),
        ({"shape": (-1, -1)}, "layout.shape"),
        ({"shape": (1, 1, 1, 1, 1)}, "layout.shape"),
        ({"shape": (MAX_STATE_NUMBERS, 2)}, "layout.shape"),
    ],
)
def test_an_impossible_part_of_a_state_is_refused(change: dict[str, object], code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        replace(PART, **change)  # type: ignore[arg-type]
    assert caught.value.code == code


def test_recurrent_layers_have_no_keys() -> None:
    with pytest.raises(MalformedError) as caught:
        replace(FULL, kind=LayerKind.RECURRENT)
    assert caught.value.code == "layout.shape"


def test_the_longest_entry_of_a_state_fits_its_unit() -> None:
    part = StatePart("longname", (1, 1, 1, MAX_STATE_NUMBERS), DType.BF16)
    parts = tuple(replace(part, name=f"longnam{n}") for n in range(MAX_STATE_PARTS))
    file = state_file(StateGroup("s", tuple(range(MAX_LAYERS)), parts, 1))
    assert len(file.header) == HEADER_UNIT * (1 + MAX_STATE_PARTS * MAX_LAYERS) < MAX_CHUNK_BYTES
    text = file.header[8:].decode().rstrip(" ")
    entries = [f'"{name}":{json.dumps(value, separators=(",", ":"))},' for name, value in json.loads(text).items()]
    assert max(map(len, entries)) <= HEADER_UNIT
    assert len(text) <= len(file.header) - 8


def test_the_largest_geometry_is_refused_by_arithmetic_and_lays_nothing_out() -> None:
    wide = Group("full", LayerKind.FULL, tuple(range(MAX_LAYERS)), MAX_HEADS, MAX_HEAD_DIM, MAX_HEAD_DIM, DType.F32)
    for block_tokens in (1, 256, 4096):
        with pytest.raises(MalformedError) as caught:
            Layout(MAX_TOKENS, block_tokens, (wide,), 8, DType.F32)
        assert caught.value.code == "layout.leaves"


def test_the_smallest_files_reach_the_leaf_limit_exactly() -> None:
    small = Group("local", LayerKind.SLIDING, tuple(range(MAX_LAYERS)), 1, 1, 1, DType.F16, window=3)
    most = Layout(MAX_LEAVES - 1, 1, (small,), 1, DType.F16)
    assert most.leaf_count == MAX_LEAVES
    needed = most.chunks_for_graft(MAX_LEAVES - 1, logits=True)
    assert [span.index for span in needed] == [MAX_LEAVES - 3, MAX_LEAVES - 2, MAX_LEAVES - 1]
    with pytest.raises(MalformedError):
        replace(most, tokens=MAX_LEAVES)


def test_the_longest_header_entry_fits_its_unit_and_the_longest_header_the_first_chunk() -> None:
    group = Group("full", LayerKind.FULL, tuple(range(MAX_LAYERS)), MAX_HEADS, MAX_HEAD_DIM, MAX_HEAD_DIM, DType.BF16)
    file = block_file(group, 4096)
    assert len(file.header) == HEADER_UNIT * (1 + 2 * MAX_LAYERS) < MAX_CHUNK_BYTES
    text = file.header[8:].decode().rstrip(" ")
    assert len(text) <= len(file.header) - 8
    entries = [f'"{name}":{json.dumps(value, separators=(",", ":"))},' for name, value in json.loads(text).items()]
    assert max(map(len, entries)) == 112


@given(layouts(), st.randoms(use_true_random=False))
def test_the_safetensors_library_loads_a_block_file_with_the_right_tensors(layout: Layout, random: object) -> None:
    block = layout.blocks - 1
    for group in layout.groups:
        check_loadable(layout.file(block, group.name), dtypes(group))
    check_loadable(layout.file(layout.blocks, LOGITS_GROUP), {"logits": layout.logits_dtype})


def check_loadable(file: BlockFile, kinds: dict[str, DType]) -> None:
    data = np.random.default_rng(0).integers(0, 256, file.size - len(file.header), dtype=np.uint8).tobytes()
    raw = safetensors.deserialize(file.header + data)
    found = {name: (item["dtype"], tuple(item["shape"]), bytes(item["data"])) for name, item in raw}
    at = len(file.header)
    assert found == {
        tensor.name: (
            kinds[tensor.part].value,
            tensor.shape,
            data[tensor.offset - at : tensor.offset - at + tensor.size],
        )
        for tensor in file.tensors
    }


def test_numpy_reads_the_numbers_that_were_written() -> None:
    file = block_file(FULL, 4)
    keys = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    values = -np.arange(40, dtype=np.float32).reshape(2, 4, 5)
    loaded = safetensors.numpy.load(file.header + keys.tobytes() + values.tobytes())
    assert np.array_equal(loaded["layers.0.key"], keys)
    assert np.array_equal(loaded["layers.0.value"], values)
    assert struct.unpack("<Q", file.header[:8]) == (len(file.header) - 8,)
    logits = logits_file(5, DType.F32)
    assert np.array_equal(
        safetensors.numpy.load(logits.header + np.ones(5, np.float32).tobytes())["logits"], np.ones((1, 1, 5))
    )
