"""The `planes` encoding: exponents, relative to their channel, entropy-coded; the rest sent as it is (PLANES.md).

    number      s eeeeeeee mmmmmmm                     (the upper half of an F32; an F16 in the same places)
    minus       the centre of its segment and channel, mod 2^16: exponents become small offsets
    fields      bits 14 … 7, one byte a number         ─► zstd as an entropy coder
    rest        bits 15 and 6 … 0, one byte a number   ─► noise, as a rule sent plain
    lower       the lower half of an F32               ─► noise

Subtraction mod 2^16 is lossless for any bytes, so NaNs and zeros need no exceptions. Which bytes are numbers, and
which numbers share a centre, follows from the signed geometry; a body says only how long its planes are, and these
lengths are checked against it. zstd's fast strategy with a tiny hash table hardly looks for matches, which mantissas
do not have, and codes literals, one table every 128 KiB. Knows nothing of digests.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import zstandard

from kvsync.pack import frame
from kvsync.pack.shape import ChunkShape, Run, Section
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB

Words = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.uint8]

PIECE: Final = 64 * KiB
"""Numbers taken through all steps at once, so that they stay in the CPU's cache."""
_SAMPLED_ROWS: Final = 256
"""Rows whose exponents are averaged at most: so many bytes add up without leaving a word."""
_FOLD: Final = 1024
"""Numbers of several rows that numpy takes as one, so that its inner loop is long enough."""
_STEP: Final = 32
"""Centres are multiples of a quarter of an octave: finer ones cost more than they save."""
_SAMPLE: Final = 8 * KiB
_LENGTH: Final = struct.Struct(">I")

_FINE: Final = zstandard.ZstdCompressionParameters(
    compression_level=1,
    strategy=zstandard.STRATEGY_FAST,
    min_match=7,
    hash_log=6,
    window_log=17,
    write_content_size=True,
)


class PlaneCoder:
    """Encodes and decodes chunks in buffers of its own. For one thread."""

    def __init__(self) -> None:
        self._compressor = zstandard.ZstdCompressor(compression_params=_FINE)
        self._words = np.empty(0, np.uint16)
        self._planes = [np.empty(0, np.uint8) for _ in range(3)]
        self._piece = np.empty(PIECE, np.uint16)
        self._body = np.empty(0, np.uint8)
        self._filled = 0

    # encoding

    def encode(self, data: memoryview, shape: ChunkShape) -> memoryview:
        """The body for `data`, which has `shape.size` bytes; it may be larger. Valid until the next call."""
        self._filled = 0
        for section in shape.sections:
            for plane in self._split(data, section):
                self._pack(plane)
        outside = b"".join(data[start:stop] for start, stop in shape.outside)
        self._pack(np.frombuffer(outside, np.uint8))
        return self._body.data[: self._filled]

    def _split(self, data: memoryview, section: Section) -> Iterator[Bytes]:
        count = section.numbers
        words = np.frombuffer(data, "<u2", count * section.bytes_each // 2, section.start)
        if section.bytes_each == 4:
            lower = self._plane(2, 2 * count).view(np.uint16)
            lower[:] = words[0::2]
            upper = self._number(count)
            upper[:] = words[1::2]
            words = upper
        centres = [_centres(words, run) for run in section.runs]
        yield np.concatenate(centres, axis=None).view(np.uint8) if centres else np.empty(0, np.uint8)
        fields, rest = self._plane(0, count), self._plane(1, count)
        moved = self._moved(words, section.runs, centres)
        for at in range(0, count, PIECE):
            word = moved[at : at + PIECE]
            some = self._piece[: len(word)]
            np.right_shift(word, 7, some)
            fields[at : at + PIECE] = some  # the cast drops the sign
            np.right_shift(word, 8, some)
            np.bitwise_and(some, 0x80, some)
            np.bitwise_and(word, 0x7F, word)
            np.bitwise_or(some, word, some)
            rest[at : at + PIECE] = some
        yield fields
        yield rest
        if section.bytes_each == 4:
            yield self._plane(2, 2 * count)

    def _moved(self, words: Words, runs: tuple[Run, ...], centres: list[Words]) -> Words:
        """`words` minus their centres. They may lie in the same buffer."""
        moved, at = self._number(len(words)), 0
        for run, centre in zip(runs, centres, strict=True):
            moved[at : run.first] = words[at : run.first]
            _apply(np.subtract, words, run, centre, moved)
            at = run.first + run.numbers
        moved[at:] = words[at:]
        return moved

    def _pack(self, plane: Bytes) -> None:
        """Append a plane to the body: its length there, and a frame if that is shorter."""
        if not len(plane):
            return
        if self._pays(plane):
            packed = self._compressor.compress(plane.data)
            if len(packed) < len(plane):
                plane = np.frombuffer(packed, np.uint8)
        self._append(np.frombuffer(_LENGTH.pack(len(plane)), np.uint8))
        self._append(plane)

    def _append(self, part: Bytes) -> None:
        end = self._filled + len(part)
        if len(self._body) < end:
            self._body = np.concatenate((self._body[: self._filled], np.empty(2 * end - self._filled, np.uint8)))
        self._body[self._filled : end] = part
        self._filled = end

    def _pays(self, plane: Bytes) -> bool:
        if len(plane) <= 4 * _SAMPLE:
            return True
        sample = np.concatenate([plane[at : at + _SAMPLE] for at in (0, len(plane) // 2)])
        return len(self._compressor.compress(sample.data)) < len(sample) * 15 // 16

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
        count = section.numbers
        centres = reader.plane(np.empty(2 * section.centres, np.uint8)).view("<u2")
        fields, rest = reader.plane(self._plane(0, count)), reader.plane(self._plane(1, count))
        into = np.frombuffer(out, "<u2", count * section.bytes_each // 2, section.start)
        words = into if section.bytes_each == 2 else self._number(count)
        for at in range(0, count, PIECE):
            word = words[at : at + PIECE]
            some = self._piece[: len(word)]
            some[:] = rest[at : at + PIECE]
            np.multiply(some, 0x101, some)
            np.bitwise_and(some, 0x807F, some)
            word[:] = fields[at : at + PIECE]
            np.multiply(word, 0x80, word)
            np.bitwise_or(word, some, word)
        for run in section.runs:
            centre, centres = centres[: run.centres], centres[run.centres :]
            _apply(np.add, words, run, centre, words)
        if section.bytes_each == 4:
            into[1::2] = words
            into[0::2] = reader.plane(self._plane(2, 2 * count)).view("<u2")

    # buffers, kept from chunk to chunk: fresh memory costs as much as the work in it

    def _number(self, count: int) -> Words:
        if len(self._words) < count:
            self._words = np.empty(count, np.uint16)
        return self._words[:count]

    def _plane(self, which: int, size: int) -> Bytes:
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


def _fold(run: Run) -> int:
    """Rows that numpy takes as one."""
    fold = 1
    while run.rows % (2 * fold) == 0 and 2 * fold * run.width <= _FOLD:
        fold *= 2
    return fold


def _folded(words: Words, run: Run, fold: int) -> Words:
    part = words[run.first : run.first + run.numbers]
    return part.reshape(run.segments, run.rows // fold, run.width * fold)


def _apply(step: np.ufunc, words: Words, run: Run, centre: Words, out: Words) -> None:
    fold = _fold(run)
    rows = np.tile(centre.reshape(run.segments, run.width), fold)[:, None, :]
    step(_folded(words, run, fold), rows, _folded(out, run, fold))


def _centres(words: Words, run: Run) -> Words:
    """About the mean of every channel's magnitudes, as bits: a piecewise linear logarithm. `[segments × width]`."""
    fold = _fold(run)
    part = _folded(words, run, fold)
    part = part[:, :: -(-part.shape[1] // _SAMPLED_ROWS)]
    total = np.empty((run.segments, run.width), np.uint64)
    group = max(1, PIECE // (part.shape[1] * part.shape[2]))
    for at in range(0, run.segments, group):
        exponents = part[at : at + group] * np.uint16(2)
        np.right_shift(exponents, 8, exponents)
        sums = np.add.reduce(exponents, axis=1, dtype=np.uint16)
        np.add.reduce(sums.reshape(-1, fold, run.width), axis=1, dtype=np.uint64, out=total[at : at + group])
    rows = part.shape[1] * fold
    steps: Words = ((total * 128 // rows + 64 + _STEP // 2) // _STEP).astype(np.uint16).reshape(-1)
    return steps * np.uint16(_STEP)
