"""Chance that is the same everywhere: draws from SHA-256 of a seed and a path of words, and names nobody has used.

The same seed gives the same tasks on every machine and in every version of Python.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, TypeVar

from kvsync_protocol.digest import hash_record

T = TypeVar("T")
_STARTS: Final = (
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "k",
    "kl",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "sk",
    "st",
    "tr",
)
_MIDDLES: Final = ("a", "e", "i", "o", "u", "ai", "ou")
_ENDS: Final = ("l", "n", "r", "s", "t", "k", "m", "nd", "rn", "lt")


class Draws:
    """A stream of draws of its own for every seed and path."""

    def __init__(self, seed: int, *path: object) -> None:
        self._key = hash_record("kvsync/draws/1", [str(seed).encode(), *(str(part).encode() for part in path)]).raw
        self._count = 0

    def below(self, limit: int) -> int:
        """A whole number in 0..limit-1; `limit` is small beside 2^64, so the bias is nothing."""
        self._count += 1
        block = hashlib.sha256(self._key + struct.pack(">Q", self._count)).digest()
        return int(struct.unpack(">Q", block[:8])[0]) % limit

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def several(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different ones, in an order of their own."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def name(self) -> str:
        """An invented word such as `Skoultrand`."""
        parts = [self.choice(_STARTS), self.choice(_MIDDLES), self.choice(_STARTS)]
        return "".join([*parts, self.choice(_MIDDLES), self.choice(_ENDS)]).capitalize()

    def names(self, count: int) -> list[str]:
        """`count` different ones."""
        found: dict[str, None] = {}
        while len(found) < count:
            found.setdefault(self.name())
        return list(found)
