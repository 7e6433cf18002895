"""Several bodies in one answer of the control lane: each after its length, a u32 BE (SPEC 8.1, *description*)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

LENGTH: Final = struct.Struct(">I")


def join(parts: Iterable[bytes]) -> bytes:
    """All of them as one body."""
    return b"".join(piece for part in parts for piece in (LENGTH.pack(len(part)), part))
