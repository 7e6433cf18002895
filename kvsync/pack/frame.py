"""One zstd frame into space of known size; nothing that the frame says about itself is believed (SPEC 8.2).

The output's size comes from the signed geometry, the window is capped, and the frame must end where its bytes end.
"""

from __future__ import annotations

from typing import Final

import zstandard

from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.limits import MiB

MAX_WINDOW_BYTES: Final = 8 * MiB
MAX_BLOCKS: Final = 4096
"""zstd cuts 4 MiB into 32 blocks or a few more; an endless row of empty ones is an attack."""

_MAGIC: Final = b"\x28\xb5\x2f\xfd"


def inflate(packed: memoryview, out: memoryview) -> None:
    """Fill `out` from the frame `packed`.

    Raises:
        MalformedError: `codec.frame` when `packed` is not exactly one zstd frame, `codec.window`.
        IntegrityError: `codec.size` when it holds more or fewer bytes than `out`.
    """
    _check_frame(packed)
    try:
        # Offered whole: then zstd writes into `out` itself where the size fits, without a window of its own.
        with zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).stream_reader(
            packed, read_size=len(packed)
        ) as frame:
            at = 0
            while at < len(out):
                got = frame.readinto(out[at:])
                if not got:
                    raise wrong_size(len(out))
                at += got
            if frame.read(1):
                raise wrong_size(len(out))
    except zstandard.ZstdError as error:
        code = "codec.window" if "memory" in str(error) else "codec.frame"
        raise MalformedError(code, "not a zstd frame that may be decoded here") from error


def wrong_size(size: int) -> IntegrityError:
    """A body that holds more or fewer than the `size` bytes that the geometry asks for."""
    return IntegrityError("codec.size", f"does not hold exactly the {size} bytes it should", size=size)


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
