"""The wire codec: round trips, and every way a body can lie about itself."""

from __future__ import annotations

import struct

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvsync.pack.codec import Codec
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.limits import MAX_CHUNK_BYTES, MiB

DATA = bytes(range(256)) * 64


def decode(body: bytes, size: int, encoding: Encoding = Encoding.ZSTD) -> bytes:
    out = bytearray(size)
    Codec().decode(memoryview(body), encoding, memoryview(out))
    return bytes(out)


def encode(data: bytes, encoding: Encoding = Encoding.ZSTD) -> tuple[Encoding, bytes]:
    chosen, body = Codec().encode(memoryview(data), encoding)
    return chosen, bytes(body)


def refused(body: bytes, size: int, encoding: Encoding = Encoding.ZSTD) -> str:
    with pytest.raises((IntegrityError, MalformedError)) as caught:
        decode(body, size, encoding)
    return caught.value.code


OUTCOMES = {"filled", "codec.frame", "codec.window", "codec.size"}


def outcome(body: bytes, size: int, encoding: Encoding) -> str:
    try:
        decode(body, size, encoding)
    except (IntegrityError, MalformedError) as error:
        return error.code
    return "filled"


@given(st.binary(min_size=1, max_size=5000), st.sampled_from(list(Encoding)))
def test_decoding_returns_what_was_encoded(data: bytes, encoding: Encoding) -> None:
    chosen, body = encode(data, encoding)
    assert decode(body, len(data), chosen) == data
    assert len(body) <= len(data)


@pytest.mark.parametrize("encoding", list(Encoding))
def test_a_whole_chunk_makes_the_round_trip(encoding: Encoding) -> None:
    data = DATA * (MAX_CHUNK_BYTES // len(DATA))
    chosen, body = encode(data, encoding)
    assert decode(body, len(data), chosen) == data


@given(st.binary(max_size=300), st.integers(1, 300), st.sampled_from(list(Encoding)))
def test_arbitrary_bodies_fill_the_chunk_or_are_refused(body: bytes, size: int, encoding: Encoding) -> None:
    assert outcome(body, size, encoding) in OUTCOMES


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_damaged_frame_is_refused_or_decodes_within_its_size(place: int, flip: int) -> None:
    body = bytearray(encode(DATA)[1])
    body[place % len(body)] ^= flip
    assert outcome(bytes(body), len(DATA), Encoding.ZSTD) in OUTCOMES


def test_every_cut_of_a_frame_is_refused() -> None:
    body = encode(DATA)[1]
    assert {refused(body[:length], len(DATA)) for length in range(len(body))} == {"codec.frame"}


def bomb(size: int) -> bytes:
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


@pytest.mark.parametrize(
    ("body", "size", "code"),
    [
        (bomb(256 * MiB), MAX_CHUNK_BYTES, "codec.size"),
        (bomb(1001), 1000, "codec.size"),
        (bomb(999), 1000, "codec.size"),
        (bomb(1000) + b"\x00", 1000, "codec.frame"),
        (bomb(1000) + bomb(1), 1000, "codec.frame"),
        (bomb(500) + bomb(500), 1000, "codec.frame"),
        (bomb(1000) + b"\x50\x2a\x4d\x18" + struct.pack("<I", 0), 1000, "codec.frame"),
        (b"\x50\x2a\x4d\x18" + struct.pack("<I", 0) + bomb(1000), 1000, "codec.frame"),
        # 13 bytes that ask for a terabyte: single segment, content size 2^40, one empty block.
        (b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 2**40) + b"\x01\x00\x00", 1000, "codec.window"),
        # A window of 2^31 bytes.
        (b"\x28\xb5\x2f\xfd\x00\xa8" + b"\x01\x00\x00", 1000, "codec.window"),
        (b"\x28\xb5\x2f\xfd\x00\x00" + b"\x00\x00\x00" * 5000 + b"\x01\x00\x00", 1000, "codec.frame"),
        # A window of 1152 bytes and a raw block of more.
        (b"\x28\xb5\x2f\xfd\x00\x01" + (2000 << 3 | 1).to_bytes(3, "little") + bytes(2000), 2000, "codec.frame"),
        (b"\x28\xb5\x2f\xfd\x08\x00" + b"\x01\x00\x00", 1000, "codec.frame"),
        (b"\x28\xb5\x2f\xfd\x00\x00" + b"\x07\x00\x00", 1000, "codec.frame"),
        (b"", 1000, "codec.frame"),
        (DATA[:1000], 1000, "codec.frame"),
    ],
    ids=[
        "bomb",
        "one byte too many",
        "one byte too few",
        "a byte after the frame",
        "a frame after the frame",
        "two half frames",
        "a skippable frame after it",
        "a skippable frame before it",
        "content size of a terabyte",
        "window of two gigabytes",
        "thousands of empty blocks",
        "a block beyond its window",
        "reserved bit",
        "reserved block type",
        "nothing",
        "no frame at all",
    ],
)
def test_a_lying_body_has_its_own_code(body: bytes, size: int, code: str) -> None:
    assert refused(body, size) == code


@pytest.mark.parametrize("length", [0, 999, 1001])
def test_plain_bytes_of_another_length_are_refused(length: int) -> None:
    assert refused(bytes(length), 1000, Encoding.IDENTITY) == "codec.size"


def test_a_body_beyond_the_limit_is_not_even_looked_at() -> None:
    assert refused(bytes(MAX_CHUNK_BYTES + 65 * 1024), 1000) == "codec.frame"
