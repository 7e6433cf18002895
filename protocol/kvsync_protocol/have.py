"""Which leaves of an artifact a provider can serve now: all, or a bitmap in leaf order (SPEC 8.1).

Leaf 0 is the highest bit of the first byte; what is left of the last byte is zero. A provider's word is a hint: it
may have lost a chunk since, and every chunk is verified on arrival anyway.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_JSON_BYTES, MAX_LEAVES

MAX_BITMAP_CHARS = 4 * (-(-MAX_LEAVES // 24) + 1)
"""Of the base64 text."""


@dataclass(frozen=True, slots=True)
class Have:
    """`Have.parse(h.encode(), leaves=h.leaves) == h`."""

    leaves: int
    """Of the whole artifact: the signed size of its tree."""
    bitmap: bytes | None = None
    """None: every leaf."""

    @classmethod
    def of(cls, indices: Iterable[int], leaves: int) -> Have:
        """The leaves at `indices`, each below `leaves`, in any order."""
        bits = bytearray(_size(leaves))
        for index in indices:
            bits[index >> 3] |= 0x80 >> (index & 7)
        return cls(leaves, None if bytes(bits) == _all(leaves) else bytes(bits))

    def __contains__(self, index: object) -> bool:
        if not isinstance(index, int) or not 0 <= index < self.leaves:
            return False
        return self.bitmap is None or bool(self.bitmap[index >> 3] & 0x80 >> (index & 7))

    def indices(self) -> Iterator[int]:
        """The leaves that can be had, ascending."""
        return (index for index in range(self.leaves) if index in self)

    def encode(self) -> bytes:
        text = None if self.bitmap is None else base64.b64encode(self.bitmap).decode()
        return strictjson.dumps({"leaves": text})

    @classmethod
    def parse(cls, data: bytes, *, leaves: int) -> Have:
        """`leaves` is the signed tree size. Raises MalformedError `json.*`, `message.*`."""
        what = "the list of chunks to be had"
        fields = strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what=what), "message")
        text = fields.optional("leaves", lambda name: fields.string(name, limit=MAX_BITMAP_CHARS))
        fields.done()
        if text is None:
            return cls(leaves)
        try:
            bitmap = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            raise MalformedError("message.range", "the bitmap is not base64") from error
        if base64.b64encode(bitmap).decode() != text or len(bitmap) != _size(leaves):
            raise MalformedError(
                "message.range", "the bitmap has not one bit per leaf, or another spelling than its one"
            )
        if bitmap[-1] & ~_all(leaves)[-1] or bitmap == _all(leaves):
            raise MalformedError("message.range", "a bitmap with bits beyond the last leaf, or of all leaves")
        return cls(leaves, bitmap)


def _size(leaves: int) -> int:
    return -(-leaves // 8)


def _all(leaves: int) -> bytes:
    spare = -leaves % 8
    return b"\xff" * (_size(leaves) - 1) + bytes([0xFF << spare & 0xFF])
