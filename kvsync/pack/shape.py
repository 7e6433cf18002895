"""What numbers the bytes of one chunk are, by the signed geometry alone: what the codec splits them by.

    chunk   |··outside··| section: numbers of one size ······························ |··outside··|
                          run: segments × rows × width, a head's tokens as the cache has them

A chunk may begin and end anywhere inside a tensor. Numbers that it cuts in two and the header lie outside all
sections; rows that it cuts in two lie in no run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from kvsync_protocol.layout import BlockFile, ChunkSpan, Layout, TensorSpan

MIN_ROWS: Final = 64
"""Fewer rows under one centre cost more than they save."""


@dataclass(frozen=True, slots=True)
class Run:
    """`segments` × `rows` × `width` numbers from number `first` of a section on; one row of centres per segment."""

    first: int
    segments: int
    rows: int
    width: int

    @property
    def numbers(self) -> int:
        return self.segments * self.rows * self.width

    @property
    def centres(self) -> int:
        return self.segments * self.width


@dataclass(frozen=True, slots=True)
class Section:
    """`numbers` numbers of `bytes_each` (1, 2 or 4) bytes from byte `start` of the chunk on."""

    start: int
    bytes_each: int
    numbers: int
    runs: tuple[Run, ...]

    @property
    def stop(self) -> int:
        return self.start + self.numbers * self.bytes_each

    @property
    def centres(self) -> int:
        return sum(run.centres for run in self.runs)


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """A chunk of `size` bytes. Sections are in order and do not overlap."""

    size: int
    sections: tuple[Section, ...]

    @property
    def outside(self) -> tuple[tuple[int, int], ...]:
        """Byte ranges that lie in no section, half-open."""
        edges = [0, *(edge for section in self.sections for edge in (section.start, section.stop)), self.size]
        return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)


def leaf_shape(layout: Layout, index: int) -> ChunkShape:
    """The shape of leaf `index`. Raises IndexError when there is none."""
    span = layout.chunk(index)
    return chunk_shape(layout.file(span.block, span.group), span)


def chunk_shape(file: BlockFile, span: ChunkSpan) -> ChunkShape:
    """The shape of bytes `span.offset` to `span.offset + span.size` of `file`."""
    return _shape(file, span.offset, span.size)


@lru_cache(maxsize=256)  # a document's blocks have few shapes
def _shape(file: BlockFile, offset: int, size: int) -> ChunkShape:
    sections: list[Section] = []
    for tensor in file.tensors:
        found = _section(tensor, offset, size)
        if found is None:
            continue
        if sections and (sections[-1].stop, sections[-1].bytes_each) == (found.start, found.bytes_each):
            found = _joined(sections.pop(), found)
        sections.append(found)
    return ChunkShape(size, tuple(sections))


def _section(tensor: TensorSpan, offset: int, size: int) -> Section | None:
    """The whole numbers of one tensor that lie in the chunk."""
    each = tensor.size // prod(tensor.shape)
    first = max(0, -((tensor.offset - offset) // each))
    last = min(tensor.size, offset + size - tensor.offset) // each
    if first >= last:
        return None
    return Section(tensor.offset + first * each - offset, each, last - first, _runs(tensor.shape, first, last))


def _runs(shape: tuple[int, ...], first: int, last: int) -> tuple[Run, ...]:
    """The whole rows among numbers `first` to `last` of a tensor, counted from `first`."""
    width, rows = shape[-1], shape[-2] if len(shape) > 1 else 1
    begin, end = -(-first // width), last // width
    inner, outer = -(-begin // rows), end // rows
    cuts = [begin, min(inner * rows, end), max(outer * rows, min(inner * rows, end)), end]
    found = [
        Run(cuts[0] * width - first, 1, cuts[1] - cuts[0], width),
        Run(cuts[1] * width - first, max(0, outer - inner), rows, width),
        Run(cuts[2] * width - first, 1, cuts[3] - cuts[2], width),
    ]
    return tuple(run for run in found if run.rows >= MIN_ROWS and run.segments)


def _joined(before: Section, after: Section) -> Section:
    """Two sections that follow each other as one; runs of one form become one as well."""
    runs = list(before.runs)
    for run in after.runs:
        moved = Run(run.first + before.numbers, run.segments, run.rows, run.width)
        last = runs[-1] if runs else None
        if last and last.first + last.numbers == moved.first and (last.rows, last.width) == (run.rows, run.width):
            runs[-1] = Run(last.first, last.segments + run.segments, run.rows, run.width)
        else:
            runs.append(moved)
    return Section(before.start, before.bytes_each, before.numbers + after.numbers, tuple(runs))
