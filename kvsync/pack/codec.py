"""A chunk's bytes on the wire, plain or compressed, and back; never part of identity (SPEC 8.2).

Decoding trusts nothing a frame says about itself: the output goes into space of the signed size, the
window is capped, and the frame must end where the body ends. Knows nothing of digests; the caller
hashes what comes out.
"""

from __future__ import annotations

from typing import Final

import zstandard

from kvsync_protocol.bulk import MAX_WIRE_BYTES, Encoding
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.limits import MAX_CHUNK_BYTES, KiB, MiB

LEVEL: Final = 1
MAX_WINDOW_BYTES: Final = 8 * MiB
MAX_BLOCKS: Final = 4096
"""zstd cuts 4 MiB into 32 blocks or a few more; an endless row of empty ones is an attack."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_READ: Final = 128 * KiB


def encode(data: bytes | bytearray | memoryview, encoding: Encoding) -> bytes | bytearray | memoryview:
    """`data` as it goes over the wire; `data` itself for IDENTITY."""
    if encoding is Encoding.IDENTITY:
        return data
    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=False).compress(data)


def decode(body: memoryview, encoding: Encoding, out: memoryview) -> None:
    """Fill `out`, whose length is the chunk's signed size, from `body`.

    Raises:
        MalformedError: `codec.frame` when `body` is not exactly one zstd frame, `codec.window`.
        IntegrityError: `codec.size` when it holds more or fewer bytes than signed.
    """
    if not 1 <= len(out) <= MAX_CHUNK_BYTES or len(body) > MAX_WIRE_BYTES:
        raise MalformedError("codec.frame", "a chunk larger than its limit")
    if encoding is Encoding.IDENTITY:
        if len(body) != len(out):
            raise _wrong_size(len(out))
        out[:] = body
        return
    _check_frame(body)
    try:
        with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
            body, read_size=_READ
        ) as frame:
            at = 0
            while at < len(out):
                got = frame.readinto(out[at:])
                if not got:
                    raise _wrong_size(len(out))
                at += got
            if frame.read(1):
                raise _wrong_size(len(out))
    except zstandard.ZstdError as error:
        code = "codec.window" if "memory" in str(error) else "codec.frame"
        raise MalformedError(code, "not a zstd frame that may be decoded here") from error


def _wrong_size(size: int) -> IntegrityError:
    return IntegrityError("codec.size", f"does not hold exactly the chunk's {size} bytes", size=size)


def _check_frame(body: memoryview) -> None:
    """Walk the frame's blocks (RFC 8878 3.1.1): nothing may follow the last, nothing may be missing.

    The library stops silently at the end of a frame and at a cut inside one.
    """
    bad = MalformedError("codec.frame", "not exactly one zstd frame")
    if bytes(body[:4]) != _MAGIC or len(body) < 5 or body[4] & 0b1000:
        raise bad
    descriptor = body[4]
    single = bool(descriptor & 0b100000)
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 0b11] + (int(single), 2, 4, 8)[descriptor >> 6]
    for _ in range(MAX_BLOCKS):
        header = int.from_bytes(body[at : at + 3], "little")
        kind, size = header >> 1 & 0b11, header >> 3
        if at + 3 > len(body) or kind == 3:
            raise bad
        at += 3 + (1 if kind == 1 else size)
        if header & 1:
            if at + (4 if descriptor & 0b100 else 0) != len(body):
                raise bad
            return
    raise bad
