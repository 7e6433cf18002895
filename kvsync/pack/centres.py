"""Centres: about the mean of each channel's magnitudes, as bits: a piecewise linear logarithm (PLANES.md)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from kvsync.pack.pieces import Numbers, fold
from kvsync.pack.shape import Run, Section
from kvsync.pack.splitter import Splitting

_SAMPLED_ROWS: Final = 256
"""Rows that a centre is the mean of, at most: so many fields add up within 16 bits."""
_STEP: Final = 32
"""Centres of words are multiples of a quarter of an octave: finer ones cost more than they save."""


def centres(numbers: Numbers, section: Section, splitter: Splitting) -> Numbers:
    """Those of a section, in the order of its runs; bytes, or words for numbers of two or four bytes."""
    kind = np.uint8 if section.bytes_each == 1 else np.uint16
    found = [_means(numbers[run.first : run.first + run.numbers], run, splitter) for run in section.runs]
    return np.concatenate(found, dtype=kind) if found else np.empty(0, kind)


def _means(numbers: Numbers, run: Run, splitter: Splitting) -> Numbers:
    together = fold(run)
    rows = numbers.reshape(run.segments, run.rows // together, run.width * together)
    step = -(-run.rows // _SAMPLED_ROWS)
    sums = splitter.sums(rows, step)
    total = np.add.reduce(sums.reshape(-1, together, run.width), axis=1, dtype=np.uint32).reshape(-1)
    count = -(-rows.shape[1] // step) * together
    if numbers.itemsize == 1:
        means: npt.NDArray[np.uint8] = ((total + count // 2) // count).astype(np.uint8)
        return means
    steps: npt.NDArray[np.uint16] = ((total * 128 // count + 64 + _STEP // 2) // _STEP).astype(np.uint16)
    return steps * np.uint16(_STEP)
