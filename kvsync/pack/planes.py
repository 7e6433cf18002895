"""The `planes` encoding: exponents, relative to their channel, entropy-coded; the rest sent as it is (PLANES.md).

    number      s eeeeeeee mmmmmmm                     (the upper half of an F32; an F16 in the same places;
                                                       an F8 is all field)
    minus       the centre of its segment and channel, mod its range: exponents become small offsets
    fields      bits 14 … 7, one byte a number         ─► zstd as an entropy coder
    rest        bits 15 and 6 … 0, one byte a number   ─► noise, as a rule sent plain
    lower       the lower half of an F32               ─► noise

Such a subtraction is lossless for any bytes, so NaNs and zeros need no exceptions. Which bytes are numbers, and
which numbers share a centre, follows from the signed geometry; a body says only how long its planes are, and these
lengths are checked against it. Numbers go through all steps piece by piece, in the CPU's cache. Knows nothing of
digests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from kvsync.pack.centres import centres
from kvsync.pack.entropy import Bytes, EntropyCoder
from kvsync.pack.frame import Inflater
from kvsync.pack.loading import LOADER
from kvsync.pack.pieces import Piece, pieces
from kvsync.pack.shape import ChunkShape, Section
from kvsync.pack.splitter import Planes, Splitter, Splitting
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB

_SAMPLE: Final = 8 * KiB
_LENGTH: Final = struct.Struct(">I")


class PlaneCoder:
    """Encodes and decodes chunks in buffers of its own. For one thread.

    `splitter` is the one to take; without it, the best that this process has by now.
    """

    def __init__(self, splitter: Splitting | None = None) -> None:
        self._entropy = EntropyCoder()
        self._inflater = Inflater()
        self._given = splitter
        self._numpy = Splitter()
        self._splitter: Splitting = self._numpy
        self._planes = [np.empty(0, np.uint8) for _ in range(3)]
        self._body = np.empty(0, np.uint8)
        self._filled = 0

    def _choose(self, shape: ChunkShape) -> None:
        self._splitter = self._given or LOADER.splitter(shape.size) or self._numpy

    # encoding

    def encode(self, data: memoryview, shape: ChunkShape) -> memoryview:
        """The body for `data`, which has `shape.size` bytes; it may be larger. Valid until the next call."""
        self._choose(shape)
        self._filled, most = 0, _most(shape)
        if len(self._body) < most:
            self._body = np.empty(most, np.uint8)
        for section in shape.sections:
            for plane in self._split(data, section):
                self._pack(plane)
        outside = b"".join(data[start:stop] for start, stop in shape.outside)
        self._pack(np.frombuffer(outside, np.uint8))
        return self._body.data[: self._filled]

    def _split(self, data: memoryview, section: Section) -> Iterator[Bytes]:
        if section.bytes_each == 1:
            return self._split_bytes(data, section)
        return self._split_words(data, section)

    def _split_bytes(self, data: memoryview, section: Section) -> Iterator[Bytes]:
        numbers = np.frombuffer(data, np.uint8, section.numbers, section.start)
        minus, fields = centres(numbers, section, self._splitter), self._plane(0, section.numbers)
        yield minus
        for piece in pieces(section, minus):
            _shift(np.subtract, numbers, piece, fields)
        yield fields

    def _split_words(self, data: memoryview, section: Section) -> Iterator[Bytes]:
        count, wide = section.numbers, section.bytes_each == 4
        numbers = np.frombuffer(data, "<u4" if wide else "<u2", count, section.start)
        minus = centres(numbers, section, self._splitter)
        yield minus.view(np.uint8)
        planes = Planes(self._plane(0, count), self._plane(1, count), self._plane(2, 2 * count * wide).view("<u2"))
        for piece in pieces(section, minus, self._splitter.most):
            self._splitter.split(numbers, piece, planes)
        yield planes.fields
        yield planes.rest
        yield planes.lower.view(np.uint8)

    def _pack(self, plane: Bytes) -> None:
        """Append a plane to the body: its length there, and a frame if that is shorter."""
        if not len(plane):
            return
        start = self._filled + _LENGTH.size
        space = self._body[start : start + len(plane)]
        length = self._entropy.compress(plane, space[:-1]) if self._pays(plane, space) else 0
        if not length:
            length = len(plane)
            space[:] = plane
        _LENGTH.pack_into(self._body.data, self._filled, length)
        self._filled = start + length

    def _pays(self, plane: Bytes, space: Bytes) -> bool:
        if len(plane) <= 4 * _SAMPLE:
            return True
        sample = np.concatenate([plane[at : at + _SAMPLE] for at in (0, len(plane) // 2)])
        return self._entropy.compress(sample, space[: len(sample) * 15 // 16]) > 0

    # decoding

    def decode(self, body: memoryview, shape: ChunkShape, out: memoryview) -> None:
        """Fill `out`, of `shape.size` bytes, from `body`.

        Raises:
            MalformedError: `codec.frame`, `codec.window`; IntegrityError: `codec.size`.
        """
        self._choose(shape)
        reader = _Body(body, self._inflater)
        for section in shape.sections:
            self._join(reader, section, out)
        outside = reader.plane(np.empty(sum(stop - start for start, stop in shape.outside), np.uint8)).data
        for start, stop in shape.outside:
            out[start:stop], outside = outside[: stop - start], outside[stop - start :]
        reader.done()

    def _join(self, reader: _Body, section: Section, out: memoryview) -> None:
        if section.bytes_each == 1:
            self._join_bytes(reader, section, out)
        else:
            self._join_words(reader, section, out)

    def _join_bytes(self, reader: _Body, section: Section, out: memoryview) -> None:
        plus = reader.plane(np.empty(section.centres, np.uint8))
        fields = reader.plane(self._plane(0, section.numbers))
        into = np.frombuffer(out, np.uint8, section.numbers, section.start)
        for piece in pieces(section, plus):
            _shift(np.add, fields, piece, into)

    def _join_words(self, reader: _Body, section: Section, out: memoryview) -> None:
        count, wide = section.numbers, section.bytes_each == 4
        plus = reader.plane(np.empty(2 * section.centres, np.uint8)).view("<u2")
        fields, rest = reader.plane(self._plane(0, count)), reader.plane(self._plane(1, count))
        planes = Planes(fields, rest, reader.plane(self._plane(2, 2 * count * wide)).view("<u2"))
        into = np.frombuffer(out, "<u4" if wide else "<u2", count, section.start)
        for piece in pieces(section, plus, self._splitter.most):
            self._splitter.join(planes, piece, into)

    def _plane(self, which: int, size: int) -> Bytes:
        """A buffer kept from chunk to chunk: fresh memory costs as much as the work in it."""
        if len(self._planes[which]) < size:
            self._planes[which] = np.empty(size, np.uint8)
        return self._planes[which][:size]


class _Body:
    """Takes planes from a body, one by one."""

    def __init__(self, body: memoryview, inflater: Inflater) -> None:
        self._left = body
        self._inflater = inflater

    def plane(self, space: Bytes) -> Bytes:
        """The next plane, as large as `space`: a view of the body, or `space` filled from a frame."""
        if not len(space):
            return space
        if len(self._left) < _LENGTH.size:
            raise _malformed()
        (length,) = _LENGTH.unpack_from(self._left)
        packed, self._left = self._left[_LENGTH.size :][:length], self._left[_LENGTH.size + length :]
        if len(packed) != length or length > len(space):
            raise _malformed()
        if length == len(space):
            return np.frombuffer(packed, np.uint8)
        self._inflater.inflate(packed, space.data)
        return space

    def done(self) -> None:
        if len(self._left):
            raise _malformed()


def _malformed() -> MalformedError:
    return MalformedError("codec.frame", "not the planes of such a chunk")


def _shift(step: np.ufunc, numbers: Bytes, piece: Piece, out: Bytes) -> None:
    """`numbers` of a piece plus or minus their centres."""
    step(numbers[piece.span].reshape(piece.rows), piece.under, out[piece.span].reshape(piece.rows))


def _most(shape: ChunkShape) -> int:
    """No body of such a chunk is longer."""
    return shape.size + sum(2 * section.centres + 4 * _LENGTH.size for section in shape.sections) + _LENGTH.size
