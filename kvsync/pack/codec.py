"""A chunk's bytes on the wire, plain or compressed, and back; never part of identity (SPEC 8.2).

Decoding trusts nothing a body says about itself: the output goes into space of the signed size, and what is to be
found where follows from the signed geometry. Knows nothing of digests; the caller hashes what comes out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import zstandard

from kvsync.pack.frame import Inflater, wrong_size
from kvsync_protocol.bulk import MAX_WIRE_BYTES, Encoding
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_CHUNK_BYTES

if TYPE_CHECKING:
    from kvsync.pack.planes import PlaneCoder
    from kvsync.pack.shape import ChunkShape

LEVEL: Final = 1


class Codec:
    """Encodes and decodes chunks for one connection, in buffers of its own. For one thread."""

    def __init__(self) -> None:
        self._coder: PlaneCoder | None = None
        self._inflater = Inflater()

    def encode(
        self, data: memoryview, encoding: Encoding, shape: ChunkShape | None = None
    ) -> tuple[Encoding, memoryview]:
        """`data` as it goes over the wire, in `encoding` where that makes it smaller, else plain.

        PLANES needs the chunk's shape; without one the data stay plain. The body is valid until the next call.
        """
        if encoding is Encoding.ZSTD:
            body = memoryview(zstandard.ZstdCompressor(level=LEVEL, write_content_size=False).compress(data))
        elif encoding is Encoding.PLANES and shape is not None and shape.size == len(data):
            body = self._planes().encode(data, shape)
        else:
            return Encoding.IDENTITY, data
        return (encoding, body) if len(body) < len(data) else (Encoding.IDENTITY, data)

    def decode(self, body: memoryview, encoding: Encoding, out: memoryview, shape: ChunkShape | None = None) -> None:
        """Fill `out`, whose length is the chunk's signed size, from `body`.

        Raises:
            MalformedError: `codec.frame` when `body` is not exactly what `encoding` makes, `codec.window`.
            IntegrityError: `codec.size` when it holds more or fewer bytes than signed.
        """
        if not 1 <= len(out) <= MAX_CHUNK_BYTES or len(body) > MAX_WIRE_BYTES:
            raise MalformedError("codec.frame", "a chunk larger than its limit")
        if encoding is Encoding.ZSTD:
            self._inflater.inflate(body, out)
        elif encoding is Encoding.IDENTITY:
            if len(body) != len(out):
                raise wrong_size(len(out))
            out[:] = body
        elif shape is None or shape.size != len(out):
            raise MalformedError("codec.frame", "planes of a chunk of another size")
        else:
            self._planes().decode(body, shape, out)

    def _planes(self) -> PlaneCoder:
        if self._coder is None:
            from kvsync.pack.planes import PlaneCoder  # numpy, for those who need it

            self._coder = PlaneCoder()
        return self._coder
