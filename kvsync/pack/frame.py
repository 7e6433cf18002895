"""One zstd frame into space of known size; nothing that the frame says about itself is believed (SPEC 8.2).

The output's size comes from the signed geometry, the window is capped, and the frame must end where its bytes end.
"""

from __future__ import annotations

from typing import Any, Final

from zstandard.backend_cffi import ffi, lib

from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.limits import KiB, MiB

MAX_WINDOW_BYTES: Final = 8 * MiB
MAX_BLOCKS: Final = 4096
"""zstd cuts 4 MiB into 32 blocks or a few more; an endless row of empty ones is an attack."""

_MAX_BLOCK_BYTES: Final = 128 * KiB
_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class Inflater:
    """Decodes frames with one context: a fresh one for each plane costs as much as a twentieth of a chunk.

    Of what `zstandard` wraps, nothing decodes into given space without copies. For one thread.
    """

    def __init__(self) -> None:
        self._context: Any = ffi.gc(lib.ZSTD_createDCtx(), lib.ZSTD_freeDCtx)

    def inflate(self, packed: memoryview, out: memoryview) -> None:
        """Fill `out` from the frame `packed`.

        Raises:
            MalformedError: `codec.frame` when `packed` is not exactly one zstd frame, `codec.window`.
            IntegrityError: `codec.size` when it holds more or fewer bytes than `out`.
        """
        if _window(packed) > MAX_WINDOW_BYTES:
            raise MalformedError("codec.window", "a zstd frame that asks for more memory than is given here")
        space = ffi.from_buffer(out, require_writable=True)
        size = lib.ZSTD_decompressDCtx(self._context, space, len(out), ffi.from_buffer(packed), len(packed))
        if lib.ZSTD_isError(size):
            if lib.ZSTD_getErrorCode(size) == lib.ZSTD_error_dstSize_tooSmall:
                raise wrong_size(len(out))
            raise MalformedError("codec.frame", "not a zstd frame that may be decoded here")
        if size != len(out):
            raise wrong_size(len(out))


def wrong_size(size: int) -> IntegrityError:
    """A body that holds more or fewer than the `size` bytes that the geometry asks for."""
    return IntegrityError("codec.size", f"does not hold exactly the {size} bytes it should", size=size)


def _window(body: memoryview) -> int:
    """The memory that a frame asks for, once its blocks are whole (RFC 8878 3.1.1) and nothing follows the last.

    The library would decode a frame after the last, and take one block after another without end.
    """
    bad = MalformedError("codec.frame", "not exactly one zstd frame")
    if bytes(body[:4]) != _MAGIC or len(body) < 6 or body[4] & 0b1000:
        raise bad
    descriptor = body[4]
    single = bool(descriptor & 0b100000)
    size_bytes = (int(single), 2, 4, 8)[descriptor >> 6]
    at = 5 + (not single) + (0, 1, 2, 4)[descriptor & 0b11] + size_bytes
    if single:
        window = int.from_bytes(body[at - size_bytes : at], "little") + 256 * (size_bytes == 2)
    else:
        window = (8 + (body[5] & 0b111)) << (7 + (body[5] >> 3))
    for _ in range(MAX_BLOCKS):
        header = int.from_bytes(body[at : at + 3], "little")
        kind, size = header >> 1 & 0b11, header >> 3
        if at + 3 > len(body) or kind == 3 or size > min(window, _MAX_BLOCK_BYTES):
            raise bad
        at += 3 + (1 if kind == 1 else size)
        if header & 1:
            if at + (4 if descriptor & 0b100 else 0) != len(body):
                raise bad
            return window
    raise bad
