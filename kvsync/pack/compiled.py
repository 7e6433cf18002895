"""The splitter as machine code: one pass over memory where numpy takes six. Importing this compiles it.

numba keeps the code beside this file, or in the user's cache, and compiles it again for another CPU or version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from kvsync.pack.pieces import Piece
from kvsync.pack.splitter import Planes, summed
from kvsync_protocol.limits import MAX_CHUNK_BYTES

if numba.config.DISABLE_JIT:
    raise ImportError("numba is told to compile nothing (NUMBA_DISABLE_JIT)")


def _array(kind: Any, *, dimensions: int = 1, given: bool = False) -> Any:
    """Any alignment: a plane may begin anywhere in a body. `given` ones are read alone."""
    return numba.types.Array(kind, dimensions, "C", readonly=given, aligned=False)


_BYTES, _WORDS, _PAIRS = (_array(kind) for kind in (numba.uint8, numba.uint16, numba.uint32))
_GIVEN_BYTES, _GIVEN_WORDS, _GIVEN_PAIRS = (
    _array(kind, given=True) for kind in (numba.uint8, numba.uint16, numba.uint32)
)
_CENTRES = _array(numba.uint16, dimensions=3, given=True)


def _part(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = numba.njit(function)
    return compiled


def _kernel(*arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    compiled: Callable[..., Any] = numba.njit(numba.void(*arguments), cache=True, nogil=True)
    return compiled


class CompiledSplitter:
    """As `Splitter`, without buffers: for any number of threads. Each kernel has run when one has been made."""

    most = MAX_CHUNK_BYTES

    def __init__(self) -> None:
        piece = Piece(slice(0, 1), (1, 1, 1), np.zeros((1, 1, 1), np.uint16))
        for kind, lower in (("<u2", 0), ("<u4", 1)):  # a first call takes as long as ten chunks
            numbers = np.zeros(1, kind)
            planes = Planes(np.zeros(1, np.uint8), np.zeros(1, np.uint8), np.zeros(lower, np.uint16))
            self.sums(numbers.reshape(1, 1, 1), 1)
            self.split(numbers, piece, planes)
            self.join(planes, piece, numbers)

    def sums(self, rows: npt.NDArray[Any], step: int) -> npt.NDArray[np.uint16]:
        if rows.itemsize == 1:
            return summed(rows, step)
        found = np.zeros((rows.shape[0], rows.shape[2]), np.uint16)
        (_sum_words if rows.itemsize == 2 else _sum_pairs)(rows, step, found)
        return found

    def split(self, numbers: npt.NDArray[Any], piece: Piece, planes: Planes) -> None:
        fields, rest = planes.fields[piece.span], planes.rest[piece.span]
        if len(planes.lower):
            _split_pairs(numbers[piece.span], piece.under, fields, rest, planes.lower[piece.span])
        else:
            _split_words(numbers[piece.span], piece.under, fields, rest)

    def join(self, planes: Planes, piece: Piece, numbers: npt.NDArray[Any]) -> None:
        fields, rest = planes.fields[piece.span], planes.rest[piece.span]
        if len(planes.lower):
            _join_pairs(fields, rest, planes.lower[piece.span], piece.under, numbers[piece.span])
        else:
            _join_words(fields, rest, piece.under, numbers[piece.span])


@_part
def _word(field: Any, rest: Any, centre: Any) -> Any:
    parts = (np.uint16(field) << np.uint16(7)) | (rest & np.uint16(0x7F)) | ((rest & np.uint16(0x80)) << np.uint16(8))
    return np.uint16(parts + centre)


@_part
def _field(word: Any) -> Any:
    return np.uint8(word >> np.uint16(7))


@_part
def _rest(word: Any) -> Any:
    return np.uint8((word & np.uint16(0x7F)) | ((word >> np.uint16(8)) & np.uint16(0x80)))


@_part
def _add(rows: Any, step: Any, shift: Any, sums: Any) -> None:
    for segment in range(rows.shape[0]):
        into = sums[segment]
        for row in range(0, rows.shape[1], step):
            given = rows[segment, row]
            for i in range(len(into)):
                into[i] += np.uint16((given[i] >> shift) & 0xFF)


@_kernel(_array(numba.uint16, dimensions=3, given=True), numba.intp, _array(numba.uint16, dimensions=2))
def _sum_words(rows: Any, step: Any, sums: Any) -> None:
    _add(rows, step, np.uint16(7), sums)


@_kernel(_array(numba.uint32, dimensions=3, given=True), numba.intp, _array(numba.uint16, dimensions=2))
def _sum_pairs(rows: Any, step: Any, sums: Any) -> None:
    _add(rows, step, np.uint32(23), sums)


# Of every row there are slices first: only so the compiler sees that no index wraps around, and takes many at once.


@_kernel(_GIVEN_WORDS, _CENTRES, _BYTES, _BYTES)
def _split_words(numbers: Any, under: Any, fields: Any, rest: Any) -> None:
    segments, _, width = under.shape
    rows = len(numbers) // width
    for row in range(rows):
        part = slice(row * width, (row + 1) * width)
        centres, given, field, other = under[row * segments // rows, 0], numbers[part], fields[part], rest[part]
        for i in range(width):
            word = np.uint16(given[i] - centres[i])
            field[i] = _field(word)
            other[i] = _rest(word)


@_kernel(_GIVEN_PAIRS, _CENTRES, _BYTES, _BYTES, _WORDS)
def _split_pairs(numbers: Any, under: Any, fields: Any, rest: Any, lower: Any) -> None:
    segments, _, width = under.shape
    rows = len(numbers) // width
    for row in range(rows):
        part = slice(row * width, (row + 1) * width)
        centres, given = under[row * segments // rows, 0], numbers[part]
        field, other, half = fields[part], rest[part], lower[part]
        for i in range(width):
            word = np.uint16(np.uint16(given[i] >> np.uint32(16)) - centres[i])
            field[i] = _field(word)
            other[i] = _rest(word)
            half[i] = np.uint16(given[i])


@_kernel(_GIVEN_BYTES, _GIVEN_BYTES, _CENTRES, _WORDS)
def _join_words(fields: Any, rest: Any, under: Any, numbers: Any) -> None:
    segments, _, width = under.shape
    rows = len(numbers) // width
    for row in range(rows):
        part = slice(row * width, (row + 1) * width)
        centres, field, other, into = under[row * segments // rows, 0], fields[part], rest[part], numbers[part]
        for i in range(width):
            into[i] = _word(field[i], np.uint16(other[i]), centres[i])


@_kernel(_GIVEN_BYTES, _GIVEN_BYTES, _GIVEN_WORDS, _CENTRES, _PAIRS)
def _join_pairs(fields: Any, rest: Any, lower: Any, under: Any, numbers: Any) -> None:
    segments, _, width = under.shape
    rows = len(numbers) // width
    for row in range(rows):
        part = slice(row * width, (row + 1) * width)
        centres, into = under[row * segments // rows, 0], numbers[part]
        field, other, half = fields[part], rest[part], lower[part]
        for i in range(width):
            word = _word(field[i], np.uint16(other[i]), centres[i])
            into[i] = (np.uint32(word) << np.uint32(16)) | np.uint32(half[i])
