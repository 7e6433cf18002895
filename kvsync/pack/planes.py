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
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsync.pack import frame
from kvsync.pack.entropy import Bytes, EntropyCoder
from kvsync.pack.shape import MIN_ROWS, ChunkShape, Run, Section
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB

Words = npt.NDArray[np.uint16]
Numbers = npt.NDArray[Any]
"""Words, or numbers of one byte."""

PIECE: Final = 128 * KiB
"""Numbers taken through all steps at once."""
_SAMPLED_ROWS: Final = 256
"""Rows that a centre is the mean of, at most: so many exponents add up within a word."""
_FOLD: Final = 1024
"""Numbers of several rows that numpy takes as one, so that its inner loop is long enough."""
_STEP: Final = 32
"""Centres are multiples of a quarter of an octave: finer ones cost more than they save."""
_SAMPLE: Final = 8 * KiB
_LENGTH: Final = struct.Struct(">I")
_WORD: Final = np.uint16


class PlaneCoder:
    """Encodes and decodes chunks in buffers of its own. For one thread."""

    def __init__(self) -> None:
        self._entropy = EntropyCoder()
        self._words = [np.empty(PIECE, _WORD) for _ in range(2)]
        self._pairs = np.empty(PIECE, np.uint32)
        self._planes = [np.empty(0, np.uint8) for _ in range(3)]
        self._body = np.empty(0, np.uint8)
        self._filled = 0

    # encoding

    def encode(self, data: memoryview, shape: ChunkShape) -> memoryview:
        """The body for `data`, which has `shape.size` bytes; it may be larger. Valid until the next call."""
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
        centres, fields = _centres(numbers, section), self._plane(0, section.numbers)
        yield centres
        for piece in _pieces(section, centres):
            _shift(np.subtract, numbers, piece, fields)
        yield fields

    def _split_words(self, data: memoryview, section: Section) -> Iterator[Bytes]:
        count, wide = section.numbers, section.bytes_each == 4
        words = np.frombuffer(data, "<u2", count * section.bytes_each // 2, section.start)
        centres = _centres(words[1::2] if wide else words, section)
        yield centres.view(np.uint8)
        fields, rest = self._plane(0, count), self._plane(1, count)
        lower = self._plane(2, 2 * count * wide)
        for piece in _pieces(section, centres):
            word, some = (space[: piece.numbers] for space in self._words)
            upper = self._halves(words, piece, lower) if wide else words[piece.span]
            np.subtract(upper.reshape(piece.rows), piece.under, word.reshape(piece.rows))
            np.right_shift(word, _WORD(7), some)
            fields[piece.span] = some  # the cast drops the sign
            np.bitwise_and(word, _WORD(0x807F), word)
            np.right_shift(word, _WORD(8), some)
            np.bitwise_or(word, some, word)
            rest[piece.span] = word
        yield fields
        yield rest
        yield lower

    def _halves(self, words: Words, piece: Piece, lower: Bytes) -> Words:
        """The upper halves of a piece of 4-byte numbers; the lower ones go into their plane."""
        pairs, some = words.view("<u4")[piece.span], self._pairs[: piece.numbers]
        upper = self._words[1][: piece.numbers]
        lower.view(_WORD)[piece.span] = pairs
        np.right_shift(pairs, np.uint32(16), some)
        upper[:] = some
        return upper

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
        reader = _Body(body)
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
        centres = reader.plane(np.empty(section.centres, np.uint8))
        fields = reader.plane(self._plane(0, section.numbers))
        into = np.frombuffer(out, np.uint8, section.numbers, section.start)
        for piece in _pieces(section, centres):
            _shift(np.add, fields, piece, into)

    def _join_words(self, reader: _Body, section: Section, out: memoryview) -> None:
        count, wide = section.numbers, section.bytes_each == 4
        centres = reader.plane(np.empty(2 * section.centres, np.uint8)).view("<u2")
        fields, rest = reader.plane(self._plane(0, count)), reader.plane(self._plane(1, count))
        lower = reader.plane(self._plane(2, 2 * count * wide)).view("<u2")
        into = np.frombuffer(out, "<u4" if wide else "<u2", count, section.start)
        for piece in _pieces(section, centres):
            some = self._words[0][: piece.numbers]
            word = self._words[1][: piece.numbers] if wide else into[piece.span]
            np.copyto(some.view(np.int16), rest.view(np.int8)[piece.span])  # the sign fills the upper byte
            np.bitwise_and(some, _WORD(0x807F), some)
            word[:] = fields[piece.span]
            np.multiply(word, _WORD(0x80), word)
            np.bitwise_or(word, some, word)
            rows = word.reshape(piece.rows)
            np.add(rows, piece.under, rows)
            if wide:
                pairs = self._pairs[: piece.numbers]
                pairs[:] = word
                np.left_shift(pairs, np.uint32(16), pairs)
                np.bitwise_or(pairs, lower[piece.span], into[piece.span])

    def _plane(self, which: int, size: int) -> Bytes:
        """A buffer kept from chunk to chunk: fresh memory costs as much as the work in it."""
        if len(self._planes[which]) < size:
            self._planes[which] = np.empty(size, np.uint8)
        return self._planes[which][:size]


class _Body:
    """Takes planes from a body, one by one."""

    def __init__(self, body: memoryview) -> None:
        self._left = body

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
        frame.inflate(packed, space.data)
        return space

    def done(self) -> None:
        if len(self._left):
            raise _malformed()


def _malformed() -> MalformedError:
    return MalformedError("codec.frame", "not the planes of such a chunk")


class Piece(NamedTuple):
    """Numbers of a section that stay in the cache; in `rows`, a shape, they broadcast with the centres `under` them.

    Never more than PIECE, since no row of `MIN_ROWS` in one chunk is longer.
    """

    span: slice
    rows: tuple[int, ...]
    under: Numbers

    @property
    def numbers(self) -> int:
        return prod(self.rows)


def _shift(step: np.ufunc, numbers: Bytes, piece: Piece, out: Bytes) -> None:
    """`numbers` of a piece plus or minus their centres."""
    step(numbers[piece.span].reshape(piece.rows), piece.under, out[piece.span].reshape(piece.rows))


def _pieces(section: Section, centres: Numbers) -> Iterator[Piece]:
    """All numbers of a section, in order."""
    at = 0
    for run in section.runs:
        yield from _uncentred(at, run.first, centres.dtype)
        yield from _centred(run, centres[: run.centres])
        at, centres = run.first + run.numbers, centres[run.centres :]
    yield from _uncentred(at, section.numbers, centres.dtype)


def _uncentred(first: int, stop: int, kind: np.dtype[Any]) -> Iterator[Piece]:
    for at in range(first, stop, PIECE):
        size = min(PIECE, stop - at)
        yield Piece(slice(at, at + size), (size,), np.zeros(1, kind))


def _centred(run: Run, centres: Numbers) -> Iterator[Piece]:
    """Whole segments where some fit into a piece, else whole rows of one."""
    fold = _fold(run)
    length, width = run.rows // fold, run.width * fold
    under = np.tile(centres.reshape(run.segments, 1, run.width), fold)
    deep = min(length, PIECE // width or 1)
    high = PIECE // (length * width) or 1
    for segment in range(0, run.segments, high):
        below = under[segment : segment + high]
        for row in range(0, length, deep):
            rows = (len(below), min(deep, length - row), width)
            first = run.first + (segment * length + row) * width
            yield Piece(slice(first, first + prod(rows)), rows, below)


def _fold(run: Run) -> int:
    """How many rows of a run numpy takes as one."""
    fold = 1
    while run.rows % (2 * fold) == 0 and 2 * fold <= MIN_ROWS and 2 * fold * run.width <= _FOLD:
        fold *= 2
    return fold


def _centres(words: Numbers, section: Section) -> Numbers:
    """About the mean of every channel's magnitudes, as bits: a piecewise linear logarithm."""
    found = [_means(words[run.first : run.first + run.numbers], run) for run in section.runs]
    return np.concatenate(found, dtype=words.dtype) if found else np.empty(0, words.dtype)


def _means(words: Numbers, run: Run) -> Numbers:
    fold = _fold(run)
    rows = words.reshape(run.segments, run.rows // fold, run.width * fold)
    rows = rows[:, :: -(-run.rows // _SAMPLED_ROWS)]
    sums = np.empty((run.segments, run.width * fold), _WORD)
    group = PIECE // (rows.shape[1] * rows.shape[2]) or 1
    for at in range(0, run.segments, group):
        np.add.reduce(_magnitudes(rows[at : at + group]), axis=1, dtype=_WORD, out=sums[at : at + group])
    total = np.add.reduce(sums.reshape(-1, fold, run.width), axis=1, dtype=np.uint32).reshape(-1)
    count = rows.shape[1] * fold
    if words.itemsize == 1:
        means: Bytes = ((total + count // 2) // count).astype(np.uint8)
        return means
    steps: Words = ((total * 128 // count + 64 + _STEP // 2) // _STEP).astype(_WORD)
    return steps * _WORD(_STEP)


def _magnitudes(rows: Numbers) -> Numbers:
    """A number of one byte without its sign, a word's field: no more than 255 either way."""
    if rows.itemsize == 1:
        return rows & np.uint8(0x7F)
    shifted = np.right_shift(rows, _WORD(7))
    return np.bitwise_and(shifted, _WORD(0xFF), shifted)


def _most(shape: ChunkShape) -> int:
    """No body of such a chunk is longer."""
    return shape.size + sum(2 * section.centres + 4 * _LENGTH.size for section in shape.sections) + _LENGTH.size
