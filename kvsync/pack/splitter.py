"""Words apart into planes and together again, in numpy: what `compiled` does in one pass, where that is loaded.

word − centre    s eeeeeeee mmmmmmm ─► field eeeeeeee, rest smmmmmmm     one byte each, PLANES.md 2
number of 4      word, lower half   ─► the word's planes, lower
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from kvsync.pack.pieces import PIECE, Piece

Words = npt.NDArray[np.uint16]
_WORD: Final = np.uint16


class Planes(NamedTuple):
    """Of a whole section: fields and rest with a byte for each number, `lower` with a half, or nothing."""

    fields: npt.NDArray[np.uint8]
    rest: npt.NDArray[np.uint8]
    lower: Words


class Splitting(Protocol):
    """What a coder needs. `numbers` are a section's, LE, of two bytes or, where there is a lower plane, of four."""

    most: int
    """Numbers that a piece should have, at most."""

    def sums(self, rows: npt.NDArray[Any], step: int) -> npt.NDArray[np.uint16]:
        """Of every `step`th row of each segment, the fields of numbers in one place; `rows` are segments of rows.

        No more than 256 rows may be taken. A number of one byte counts without its sign.
        """

    def split(self, numbers: npt.NDArray[Any], piece: Piece, planes: Planes) -> None:
        """Fill the planes' part for a piece."""

    def join(self, planes: Planes, piece: Piece, numbers: npt.NDArray[Any]) -> None:
        """Fill the numbers of a piece."""


class Splitter:
    """Several passes over a piece, in buffers of its own. For one thread."""

    most = PIECE

    def __init__(self) -> None:
        self._words = [np.empty(PIECE, _WORD) for _ in range(2)]
        self._pairs = np.empty(PIECE, np.uint32)

    def sums(self, rows: npt.NDArray[Any], step: int) -> npt.NDArray[np.uint16]:
        return summed(rows, step)

    def split(self, numbers: npt.NDArray[Any], piece: Piece, planes: Planes) -> None:
        word, some = (space[: piece.numbers] for space in self._words)
        upper = (
            self._halves(numbers[piece.span], planes.lower[piece.span]) if len(planes.lower) else numbers[piece.span]
        )
        np.subtract(upper.reshape(piece.rows), piece.under, word.reshape(piece.rows))
        np.right_shift(word, _WORD(7), some)
        planes.fields[piece.span] = some  # the cast drops the sign
        np.bitwise_and(word, _WORD(0x807F), word)
        np.right_shift(word, _WORD(8), some)
        np.bitwise_or(word, some, word)
        planes.rest[piece.span] = word

    def _halves(self, pairs: npt.NDArray[np.uint32], lower: Words) -> Words:
        """The upper halves of numbers of four bytes; the lower ones go into their plane."""
        some, upper = self._pairs[: len(pairs)], self._words[1][: len(pairs)]
        lower[:] = pairs
        np.right_shift(pairs, np.uint32(16), some)
        upper[:] = some
        return upper

    def join(self, planes: Planes, piece: Piece, numbers: npt.NDArray[Any]) -> None:
        wide, into = len(planes.lower) > 0, numbers[piece.span]
        some = self._words[0][: piece.numbers]
        word = self._words[1][: piece.numbers] if wide else into
        np.copyto(some.view(np.int16), planes.rest.view(np.int8)[piece.span])  # the sign fills the upper byte
        np.bitwise_and(some, _WORD(0x807F), some)
        word[:] = planes.fields[piece.span]
        np.multiply(word, _WORD(0x80), word)
        np.bitwise_or(word, some, word)
        rows = word.reshape(piece.rows)
        np.add(rows, piece.under, rows)
        if wide:
            pairs = self._pairs[: piece.numbers]
            pairs[:] = word
            np.left_shift(pairs, np.uint32(16), pairs)
            np.bitwise_or(pairs, planes.lower[piece.span], into)


def summed(rows: npt.NDArray[Any], step: int) -> npt.NDArray[np.uint16]:
    """As `Splitting.sums`."""
    segments, _, width = rows.shape
    if rows.itemsize == 4:
        rows = rows.view("<u2")[..., 1::2]
    sampled, found = rows[:, ::step], np.empty((segments, width), np.uint16)
    group = PIECE // (sampled.shape[1] * width) or 1
    for at in range(0, segments, group):
        magnitudes = _magnitudes(sampled[at : at + group])
        np.add.reduce(magnitudes, axis=1, dtype=np.uint16, out=found[at : at + group])
    return found


def _magnitudes(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """No more than 255 each."""
    if rows.itemsize == 1:
        return rows & np.uint8(0x7F)
    fields: Words = np.right_shift(rows, _WORD(7))
    np.bitwise_and(fields, _WORD(0xFF), fields)
    return fields
