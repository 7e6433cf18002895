"""The planes encoding: any bytes under any geometry come back, and no body gets anything past the geometry."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvsync.pack.codec import Codec
from kvsync.pack.compiled import CompiledSplitter
from kvsync.pack.planes import PlaneCoder
from kvsync.pack.shape import ChunkShape, Run, Section, chunk_shape, leaf_shape
from kvsync.pack.splitter import Splitter
from kvsync_protocol.bulk import MAX_WIRE_BYTES, Encoding
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.layout import ChunkSpan, DType, Group, LayerKind, Layout, StateGroup, StatePart
from kvsync_protocol.limits import MAX_CHUNK_BYTES, MiB

DTYPES = st.sampled_from(list(DType))
SMALL = st.integers(1, 9)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """One attention group and perhaps one of states, of any small geometry and mixed element types."""
    full = Group(
        "full", LayerKind.FULL, (0, 1), draw(SMALL), draw(st.integers(1, 40)), draw(st.integers(1, 40)), draw(DTYPES)
    )
    parts = tuple(
        StatePart(f"p{number}", tuple(draw(st.lists(SMALL, min_size=1, max_size=3))), draw(DTYPES))
        for number in range(draw(st.integers(0, 3)))
    )
    groups = (full, StateGroup("state", (2,), parts, draw(st.integers(1, 3)))) if parts else (full,)
    return Layout(
        draw(st.integers(1, 400)), draw(st.integers(1, 300)), groups, draw(st.integers(1, 99)), draw(DTYPES)
    )


@st.composite
def spans(draw: st.DrawFn) -> tuple[Layout, ChunkSpan]:
    """Any stretch of any file of a layout: chunks of real files begin and end where they happen to."""
    layout = draw(layouts())
    chunk = draw(st.sampled_from(list(layout.chunks())))
    size = layout.file(chunk.block, chunk.group).size
    offset = draw(st.integers(0, size - 1))
    length = draw(st.integers(1, min(size - offset, MAX_CHUNK_BYTES)))
    return layout, ChunkSpan(chunk.index, chunk.block, chunk.group, offset, length)


def numbers_like_a_cache(size: int, seed: int) -> bytes:
    """Bytes of normal deviates in bf16, with zeros, infinities and NaN payloads strewn in."""
    random = np.random.default_rng(seed)
    words = (random.normal(0, 3, size // 2 + 1).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    words[random.random(len(words)) < 0.01] = 0
    words[random.random(len(words)) < 0.01] = 0xFFB7
    words[random.random(len(words)) < 0.01] = 0x8001
    return words.tobytes()[:size]


def fill(kind: str, size: int, seed: int) -> bytes:
    if kind == "zeros":
        return bytes(size)
    return np.random.default_rng(seed).bytes(size) if kind == "noise" else numbers_like_a_cache(size, seed)


SPLITTERS = Splitter(), CompiledSplitter()


def encoded(data: bytes | bytearray, shape: ChunkShape, coders: Sequence[PlaneCoder] = ()) -> bytes:
    """The body; numpy and machine code make the same."""
    bodies = {bytes(coder.encode(memoryview(data), shape)) for coder in coders or map(PlaneCoder, SPLITTERS)}
    assert len(bodies) == 1
    return bodies.pop()


def decoded(body: bytes | memoryview, shape: ChunkShape) -> bytes:
    """What both find in it, or how the last refuses it."""
    found, refusals = set(), []
    for splitter in SPLITTERS:
        out = bytearray(shape.size)
        try:
            PlaneCoder(splitter).decode(memoryview(body), shape, memoryview(out))
        except (IntegrityError, MalformedError) as error:
            refusals.append(error)
        else:
            found.add(bytes(out))
    if refusals:
        assert {error.code for error in refusals} == {refusals[0].code}
        assert not found
        raise refusals[0]
    assert len(found) == 1
    return found.pop()


@given(spans(), st.sampled_from(["zeros", "noise", "numbers"]), st.integers(0, 2**32))
def test_any_bytes_of_any_stretch_come_back(found: tuple[Layout, ChunkSpan], kind: str, seed: int) -> None:
    layout, span = found
    shape = chunk_shape(layout.file(span.block, span.group), span)
    data = fill(kind, span.size, seed)
    coders = [PlaneCoder(splitter) for splitter in SPLITTERS]
    assert decoded(encoded(data, shape, coders), shape) == data
    other = fill("numbers", span.size, seed + 1)
    assert decoded(encoded(other, shape, coders), shape) == other, "the buffers kept something"


@given(spans())
def test_sections_and_what_lies_outside_cover_every_byte_once(found: tuple[Layout, ChunkSpan]) -> None:
    layout, span = found
    shape = chunk_shape(layout.file(span.block, span.group), span)
    pieces = sorted([*shape.outside, *((section.start, section.stop) for section in shape.sections)])
    assert [a for a, _ in pieces] == [0, *(b for _, b in pieces[:-1])]
    assert pieces[-1][1] == span.size
    for section in shape.sections:
        ends = [(run.first, run.first + run.numbers) for run in section.runs]
        assert all(a[1] <= b[0] for a, b in pairwise(ends))
        assert all(0 <= a < b <= section.numbers for a, b in ends)


@given(layouts())
def test_a_leaf_is_found_without_laying_out_the_others(layout: Layout) -> None:
    assert [layout.chunk(index) for index in range(layout.leaf_count)] == list(layout.chunks())
    for index in (-1, layout.leaf_count):
        with pytest.raises(IndexError):
            layout.chunk(index)


CACHE = Layout(700, 256, (Group("full", LayerKind.FULL, tuple(range(30)), 3, 64, 64, DType.BF16),), 1000, DType.F32)
WIDE = Layout(256, 256, (Group("full", LayerKind.FULL, (0, 1, 2), 2, 128, 64, DType.F32),), 1000, DType.F16)


@pytest.mark.parametrize("layout", [CACHE, WIDE], ids=["two chunks a file", "keys wider than values"])
def test_chunks_that_cut_a_tensor_in_two_come_back(layout: Layout) -> None:
    codec, coders = Codec(), [PlaneCoder(splitter) for splitter in SPLITTERS]
    for span in layout.chunks():
        shape, data = leaf_shape(layout, span.index), fill("numbers", span.size, span.index)
        assert decoded(encoded(data, shape, coders), shape) == data
        encoding, body = codec.encode(memoryview(data), Encoding.PLANES, shape)
        out = bytearray(span.size)
        codec.decode(memoryview(bytes(body)), encoding, memoryview(out), shape)
        assert out == data
        assert encoding is (Encoding.PLANES if span.group == "full" else encoding)


@pytest.mark.parametrize(("dtype", "ratio"), [(DType.F8_E4M3, 1.15), (DType.F8_E5M2, 1.4)])
def test_numbers_of_one_byte_are_coded_whole(dtype: DType, ratio: float) -> None:
    """Normal deviates of channels between a quarter and four, as torch rounds them."""
    layout = Layout(256, 256, (Group("full", LayerKind.FULL, (0,), 8, 64, 64, dtype),), 1000, DType.F32)
    shape = leaf_shape(layout, 0)
    (section,) = shape.sections
    random = np.random.default_rng(8)
    scale = np.float32(2) ** random.uniform(-2, 2, (section.numbers // 64 // 256, 1, 64)).astype(np.float32)
    values = torch.from_numpy(random.normal(0, 1, (len(scale), 256, 64)).astype(np.float32) * scale)
    kind = {DType.F8_E4M3: torch.float8_e4m3fn, DType.F8_E5M2: torch.float8_e5m2}[dtype]
    data = bytearray(shape.size)
    data[section.start : section.stop] = values.to(kind).view(torch.uint8).numpy().tobytes()
    body = encoded(data, shape)
    assert len(body) * ratio < shape.size
    assert decoded(body, shape) == data


def test_one_channel_of_other_magnitude_than_the_next_costs_nothing() -> None:
    shape = leaf_shape(CACHE, 0)
    (section,) = shape.sections
    scale = np.float32(2) ** np.random.default_rng(5).integers(-20, 20, 64)
    numbers = np.random.default_rng(6).normal(0, 1, (section.numbers // 64, 64)).astype(np.float32)

    def body(values: np.ndarray) -> int:
        words = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        data = bytearray(shape.size)
        data[section.start : section.stop] = words
        return len(encoded(data, shape))

    assert body(numbers * scale) < body(numbers) * 1.01
    assert body(numbers) * 1.45 < shape.size


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32])
def test_rows_as_wide_as_a_chunk_can_share_centres_come_back(dtype: DType) -> None:
    width = MAX_CHUNK_BYTES // 64 // 4 - 8
    layout = Layout(64, 64, (Group("full", LayerKind.FULL, (0,), 1, width, 3, dtype),), 10, DType.F32)
    shape, data = leaf_shape(layout, 0), fill("numbers", leaf_shape(layout, 0).size, 9)
    assert shape.sections[0].runs[0].width == width
    assert decoded(encoded(data, shape), shape) == data


def test_noise_goes_out_plain() -> None:
    shape = leaf_shape(CACHE, 0)
    data = np.random.default_rng(1).bytes(shape.size)
    encoding, body = Codec().encode(memoryview(data), Encoding.PLANES, shape)
    assert encoding is Encoding.IDENTITY
    assert body == data


@pytest.mark.parametrize("kind", ["zeros", "noise", "numbers"])
@pytest.mark.parametrize("layout", [CACHE, WIDE], ids=["bf16", "f32"])
def test_no_body_is_larger_than_a_reader_takes(kind: str, layout: Layout) -> None:
    shape = leaf_shape(layout, 0)
    assert len(encoded(fill(kind, shape.size, 3), shape)) <= MAX_WIRE_BYTES


# bodies that lie

TINY = ChunkShape(900, (Section(100, 2, 256, (Run(0, 1, 64, 4),)), Section(700, 4, 50, ())))
OUTCOMES = {"filled", "codec.frame", "codec.window", "codec.size"}


def outcome(body: bytes, shape: ChunkShape = TINY) -> str:
    try:
        decoded(body, shape)
    except (IntegrityError, MalformedError) as error:
        return error.code
    return "filled"


HONEST = encoded(numbers_like_a_cache(900, 4), TINY)


@given(st.binary(max_size=1200))
def test_arbitrary_bodies_fill_the_chunk_or_are_refused(body: bytes) -> None:
    assert outcome(body) in OUTCOMES


@given(st.lists(st.tuples(st.integers(0, len(HONEST) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_damaged_bodies_fill_the_chunk_or_are_refused(flips: list[tuple[int, int]]) -> None:
    body = bytearray(HONEST)
    for place, flip in flips:
        body[place] ^= flip
    assert outcome(bytes(body)) in OUTCOMES


def test_every_cut_and_every_addition_is_refused() -> None:
    assert outcome(HONEST) == "filled"
    assert {outcome(HONEST[:length]) for length in range(len(HONEST))} <= {"codec.frame", "codec.size"}
    assert outcome(HONEST + b"\0") == "codec.frame"


def plane(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (plane(zstandard.ZstdCompressor(level=19).compress(bytes(64 * MiB))), "codec.frame"),  # longer than the plane
        (plane(b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\x01\x00\x00")[:20], "codec.frame"),
        (plane(b""), "codec.frame"),
        (struct.pack(">I", 2**32 - 1), "codec.frame"),
        (plane(bytes(9)), "codec.frame"),
    ],
    ids=["a bomb", "content size of a terabyte", "nothing", "four gigabytes", "one byte too many"],
)
def test_a_lying_plane_is_refused_before_it_takes_memory(first: bytes, code: str) -> None:
    assert outcome(first + HONEST) == code


def test_a_frame_of_another_size_than_its_plane_is_refused() -> None:
    shape = ChunkShape(4000, (Section(0, 2, 2000, ()),))
    for size, code in ((1999, "codec.size"), (2001, "codec.size"), (2000, "filled"), (32 * MiB, "codec.size")):
        packed = zstandard.ZstdCompressor(level=3).compress(bytes(size))
        assert outcome(plane(packed) + plane(bytes(2000)), shape) == code


@pytest.mark.parametrize("shape", [None, TINY])
def test_planes_of_a_chunk_of_unknown_or_other_size_are_refused(shape: ChunkShape | None) -> None:
    with pytest.raises(MalformedError) as caught:
        Codec().decode(memoryview(HONEST), Encoding.PLANES, memoryview(bytearray(901)), shape)
    assert caught.value.code == "codec.frame"
    assert Codec().encode(memoryview(bytes(901)), Encoding.PLANES, shape)[0] is Encoding.IDENTITY
