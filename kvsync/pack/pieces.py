"""`Piece`: numbers of a section that go through all steps of the codec together, in the CPU's cache."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsync.pack.shape import MIN_ROWS, Run, Section
from kvsync_protocol.limits import KiB

Numbers = npt.NDArray[Any]
"""Words of two bytes, or numbers of one."""

PIECE: Final = 128 * KiB
"""Numbers taken through all steps at once."""
_FOLD: Final = 1024
"""Numbers of several rows that numpy takes as one, so that its inner loop is long enough."""


class Piece(NamedTuple):
    """Numbers of a section that stay in the cache: segments, of rows as wide as the row of centres `under` each.

    `rows` is the shape in which they broadcast with it. Never more than asked for, PIECE at least, since no row of
    `MIN_ROWS` in one chunk is longer.
    """

    span: slice
    rows: tuple[int, int, int]
    under: Numbers

    @property
    def numbers(self) -> int:
        return prod(self.rows)


def pieces(section: Section, centres: Numbers, most: int = PIECE) -> Iterator[Piece]:
    """All numbers of a section, in order; `most` bounds pieces as PIECE does by itself."""
    at = 0
    for run in section.runs:
        yield from _uncentred(at, run.first, centres.dtype)
        yield from _centred(run, centres[: run.centres], most)
        at, centres = run.first + run.numbers, centres[run.centres :]
    yield from _uncentred(at, section.numbers, centres.dtype)


def _uncentred(first: int, stop: int, kind: np.dtype[Any]) -> Iterator[Piece]:
    for at in range(first, stop, PIECE):
        size = min(PIECE, stop - at)
        yield Piece(slice(at, at + size), (1, 1, size), _nothing(kind)[:, :, :size])


@cache
def _nothing(kind: np.dtype[Any]) -> Numbers:
    return np.zeros((1, 1, PIECE), kind)


def _centred(run: Run, centres: Numbers, most: int) -> Iterator[Piece]:
    """Whole segments where some fit into a piece, else whole rows of one."""
    together = fold(run)
    length, width = run.rows // together, run.width * together
    under = np.tile(centres.reshape(run.segments, 1, run.width), together)
    deep = min(length, most // width or 1)
    high = most // (length * width) or 1
    for segment in range(0, run.segments, high):
        below = under[segment : segment + high]
        for row in range(0, length, deep):
            rows = (len(below), min(deep, length - row), width)
            first = run.first + (segment * length + row) * width
            yield Piece(slice(first, first + prod(rows)), rows, below)


def fold(run: Run) -> int:
    """How many rows of a run numpy takes as one."""
    together = 1
    while run.rows % (2 * together) == 0 and 2 * together <= MIN_ROWS and 2 * together * run.width <= _FOLD:
        together *= 2
    return together
