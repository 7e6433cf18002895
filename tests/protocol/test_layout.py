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

from kvsync_protocol.errors import MalformedError
from kvsync_protocol.group import HEADER_UNIT
from kvsync_protocol.layout import (
    LOGITS_GROUP,
    BlockFile,
    DType,
    Group,
    LayerKind,
    Layout,
    block_file,
    logits_file,
)
from kvsync_protocol.limits import (
    MAX_CHUNK_BYTES,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEAVES,
    MAX_TOKENS,
)
from tests.protocol.strategies import layouts

FULL = Group("full", LayerKind.FULL, (0,), 2, 3, 5, DType.F32)


@given(layouts())
def test_chunks_cover_every_file_densely_and_in_order(layout: Layout) -> None:
    spans = list(layout.chunks())
    files = [(block, group.name) for block in range(layout.blocks) for group in layout.groups]
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
    assert sum(span.block < layout.full_blocks for span in spans) == layout.full_leaves


@given(layouts())
def test_blocks_cover_every_token_once(layout: Layout) -> None:
    ranges = [layout.block_range(block) for block in range(layout.blocks)]
    assert [token for start, stop in ranges for token in range(start, stop)] == list(range(layout.tokens))


@given(layouts())
def test_tensors_stand_densely_behind_the_header(layout: Layout) -> None:
    for block in range(layout.blocks):
        for group in layout.groups:
            file = layout.file(block, group.name)
            at = len(file.header)
            assert at % 64 == 0
            for tensor in file.tensors:
                assert tensor.offset == at
                assert tensor.size == np.prod(tensor.shape) * group.dtype.size
                at += tensor.size
            assert at == file.size == group.file_size(tensors_tokens(file))


def tensors_tokens(file: BlockFile) -> int:
    return file.tensors[0].shape[1]


@given(layouts(), st.data())
def test_a_graft_needs_all_of_full_groups_and_the_window_of_sliding_ones(layout: Layout, data: st.DataObject) -> None:
    cuts = sorted({layout.tokens, *range(0, layout.tokens + 1, layout.block_tokens)})
    position = data.draw(st.sampled_from(cuts))
    logits = data.draw(st.booleans())
    found = list(layout.chunks_for_graft(position, logits=logits))
    everything = list(layout.chunks())
    assert set(found) <= set(everything)
    assert found == sorted(found, key=lambda span: span.index)
    assert any(span.group == LOGITS_GROUP for span in found) == logits
    for group in layout.groups:
        have = {span.block for span in found if span.group == group.name}
        first = 0 if group.window is None else max(0, position - group.window + 1)
        assert have == {token // layout.block_tokens for token in range(first, position)}


@given(layouts(), st.integers(1, 30))
def test_a_longer_document_has_the_same_leaves_for_the_same_full_blocks(layout: Layout, more: int) -> None:
    longer = replace(layout, tokens=layout.tokens + more)
    shared = layout.full_leaves
    assert list(longer.chunks())[:shared] == list(layout.chunks())[:shared]
    assert longer.full_leaves >= shared


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
        check_loadable(layout.file(block, group.name), group.dtype)
    check_loadable(layout.file(layout.blocks, LOGITS_GROUP), layout.logits_dtype)


def check_loadable(file: BlockFile, dtype: DType) -> None:
    data = np.random.default_rng(0).integers(0, 256, file.size - len(file.header), dtype=np.uint8).tobytes()
    raw = safetensors.deserialize(file.header + data)
    found = {name: (item["dtype"], tuple(item["shape"]), bytes(item["data"])) for name, item in raw}
    at = len(file.header)
    assert found == {
        tensor.name: (dtype.value, tensor.shape, data[tensor.offset - at : tensor.offset - at + tensor.size])
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
