"""`Digest`: the only way a hash enters the program, and so the only thing that ever names a file.

Knows nothing of files, trees or peers.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NewType

from kvsync_protocol.errors import MalformedError

_HEX = re.compile(r"(?:sha256:)?([0-9a-f]{64})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class Digest:
    """A SHA-256 value, 32 bytes. `Digest.parse(str(d)) == d` for every digest."""

    raw: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.raw, bytes) or len(self.raw) != 32:
            raise MalformedError("digest.length", "a digest has exactly 32 bytes")

    @classmethod
    def parse(cls, text: object) -> Digest:
        """Read `sha256:<64 lower-case hex digits>`; the prefix may be absent (SPEC 2.1).

        Raises:
            MalformedError: `digest.syntax` for anything else, so that no path, link or third
                spelling of a digest gets past this point.
        """
        found = _HEX.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise MalformedError(
                "digest.syntax",
                "not a SHA-256 digest",
                hint="expected sha256: and 64 lower-case hex digits",
            )
        return cls(bytes.fromhex(found.group(1)))

    @property
    def hex(self) -> str:
        return self.raw.hex()

    @property
    def short(self) -> str:
        """The first 12 hex digits, for people; never parsed."""
        return self.raw.hex()[:12]

    def __str__(self) -> str:
        return f"sha256:{self.raw.hex()}"


ArtifactId = NewType("ArtifactId", Digest)
"""SHA-256 of the manifest's payload bytes."""

PrefixKey = NewType("PrefixKey", Digest)
"""Names the computation of a block, not its bytes (SPEC 6)."""


def sha256(data: bytes | bytearray | memoryview) -> Digest:
    """The digest of `data`."""
    return Digest(hashlib.sha256(data).digest())


def hash_record(tag: str, items: Iterable[bytes]) -> Digest:
    """SHA-256 over a domain tag and items, each preceded by its length as u64 BE (SPEC 2.2).

    Length prefixes keep ("ab", "c") and ("a", "bc") apart; the tag keeps records of different
    meaning apart even when their items are equal.
    """
    state = hashlib.sha256()
    for item in (tag.encode(), *items):
        state.update(struct.pack(">Q", len(item)))
        state.update(item)
    return Digest(state.digest())
