"""Centres: about the mean of each channel's magnitudes, as bits: a piecewise linear logarithm (PLANES.md)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kvsync.pack.pieces import PIECE, Numbers, fold
from kvsync.pack.shape import Run, Section

_SAMPLED_ROWS: Final = 256
"""Rows that a centre is the mean of, at most: so many exponents add up within 16 bits."""
_STEP: Final = 32
"""Centres of words are multiples of a quarter of an octave: finer ones cost more than they save."""


def centres(words: Numbers, section: Section) -> Numbers:
    """Those of a section, in the order of its runs. `words` are its numbers, or their upper halves."""
    found = [_means(words[run.first : run.first + run.numbers], run) for run in section.runs]
    return np.concatenate(found, dtype=words.dtype) if found else np.empty(0, words.dtype)


def _means(words: Numbers, run: Run) -> Numbers:
    together = fold(run)
    rows = words.reshape(run.segments, run.rows // together, run.width * together)
    rows = rows[:, :: -(-run.rows // _SAMPLED_ROWS)]
    sums = np.empty((run.segments, run.width * together), np.uint16)
    group = PIECE // (rows.shape[1] * rows.shape[2]) or 1
    for at in range(0, run.segments, group):
        np.add.reduce(_magnitudes(rows[at : at + group]), axis=1, dtype=np.uint16, out=sums[at : at + group])
    total = np.add.reduce(sums.reshape(-1, together, run.width), axis=1, dtype=np.uint32).reshape(-1)
    count = rows.shape[1] * together
    if words.itemsize == 1:
        means: npt.NDArray[np.uint8] = ((total + count // 2) // count).astype(np.uint8)
        return means
    steps: npt.NDArray[np.uint16] = ((total * 128 // count + 64 + _STEP // 2) // _STEP).astype(np.uint16)
    return steps * np.uint16(_STEP)


def _magnitudes(rows: Numbers) -> Numbers:
    """A number of one byte without its sign, a word's field: no more than 255 either way."""
    if rows.itemsize == 1:
        return rows & np.uint8(0x7F)
    shifted = np.right_shift(rows, np.uint16(7))
    return np.bitwise_and(shifted, np.uint16(0xFF), shifted)
