"""`Extent`: which part of an artifact is kept here, as the positions at which grafts can begin with it.

    artifacts/<id>/extent    {"positions":[4096,8192]}    without the file, all of the artifact is here

    blocks      0   1   2   3   4   5   6   7
    full       [==========================]         everything before the last position
    sliding                 [======]   [===]        the window before each position
    recurrent                    S       S          the snapshot at each

What is kept covers more positions than those listed, where the groups let it: `covers` tells. Knows the signed
geometry, no files and no chunks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from kvsync.errors import UsageError
from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.group import Group
from kvsync_protocol.layout import LOGITS_GROUP, ChunkSpan, Layout
from kvsync_protocol.limits import MAX_TOKENS, MiB

MAX_EXTENT_BYTES: Final = 1 * MiB
MAX_POSITIONS: Final = 64 * 1024


@dataclass(frozen=True)
class Extent:
    """Positions in ascending order, at least one. `Extent.parse(e.encode(), e.layout) == e`.

    Raises:
        UsageError: `store.extent` when no graft can begin at one of them, or there are none or too many.
    """

    layout: Layout
    positions: tuple[int, ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.positions))) == self.positions
        if not ordered or not 1 <= len(self.positions) <= MAX_POSITIONS:
            raise UsageError("store.extent", "positions are missing, too many or out of order")
        for position in self.positions:
            if position < 1 or self.layout.restorable(position) != position:
                raise UsageError("store.extent", f"no graft can begin at position {position} of this artifact")

    @classmethod
    def of(cls, layout: Layout, positions: Collection[int]) -> Extent | None:
        """What grafts at `positions` need; None when that is everything. Raises UsageError `store.extent`."""
        extent = cls(layout, tuple(sorted(set(positions))))
        return None if extent.bytes == layout.total_bytes else extent

    def merged(self, other: Extent | None) -> Extent | None:
        """Both; None when that is all of the artifact, as `other` is when it is None."""
        return None if other is None else Extent.of(self.layout, {*self.positions, *other.positions})

    def encode(self) -> bytes:
        return strictjson.dumps({"positions": list(self.positions)})

    @classmethod
    def parse(cls, data: bytes, layout: Layout) -> Extent:
        """Raises MalformedError `json.*`, `extent.*`."""
        fields = strictjson.Fields(strictjson.loads(data, limit=MAX_EXTENT_BYTES, what="the extent"), "extent")
        positions = fields.integers("positions", 1, MAX_TOKENS, limit=MAX_POSITIONS)
        fields.done()
        try:
            return cls(layout, positions)
        except UsageError as error:
            raise MalformedError("extent.range", error.message) from error

    @property
    def to_end(self) -> bool:
        """Whether the artifact's end, with its final logits, is among the positions."""
        return self.positions[-1] == self.layout.tokens

    def spans(self) -> Iterator[ChunkSpan]:
        """The chunks kept, in leaf order: those of `Layout.chunks_for_graft` at every position."""
        return (span for span in self.layout.chunks() if self._keeps(span))

    def _keeps(self, span: ChunkSpan) -> bool:
        if span.group == LOGITS_GROUP:
            return self.to_end
        return self._runs[span.group].holds(span.block, span.block + 1)

    @cached_property
    def bytes(self) -> int:
        """Of the chunks kept."""
        logits = self.layout.file(self.layout.blocks, LOGITS_GROUP).size if self.to_end else 0
        return logits + sum(self._group_bytes(name, runs) for name, runs in self._runs.items())

    def _group_bytes(self, name: str, runs: _Runs) -> int:
        group, layout = self.layout.group(name), self.layout
        if not isinstance(group, Group):
            return runs.count * group.file_size
        tail = layout.tail_tokens if runs.holds(layout.full_blocks, layout.full_blocks + 1) else 0
        partial = group.file_size(tail) if tail else 0
        return (runs.count - (tail > 0)) * group.file_size(layout.block_tokens) + partial

    def covers(self, position: int) -> bool:
        """Whether every chunk that a graft at `position` needs is kept; at the end that includes the logits."""
        if position < 1 or self.layout.restorable(position) != position:
            return False
        if position == self.layout.tokens:
            return self.to_end
        return all(runs.holds(*_blocks(self.layout, name, position)) for name, runs in self._runs.items())

    def restorable(self, position: int) -> int:
        """The last place at or before `position` that is covered; 0 when there is none."""
        found = self.layout.restorable(min(position, self.positions[-1]))
        while found > 0 and not self.covers(found):
            blocks = -(-found // self.layout.block_tokens)
            found = self.layout.restorable((blocks - 1) * self.layout.block_tokens)
        return found

    @cached_property
    def _runs(self) -> dict[str, _Runs]:
        groups = (group.name for group in self.layout.groups)
        return {name: _Runs.of([_blocks(self.layout, name, p) for p in self.positions]) for name in groups}


def last_position(data: bytes) -> int:
    """Of what `Extent.encode` has written, without the layout. Raises MalformedError `json.*`, `extent.*`."""
    fields = strictjson.Fields(strictjson.loads(data, limit=MAX_EXTENT_BYTES, what="the extent"), "extent")
    return max(fields.integers("positions", 1, MAX_TOKENS, limit=MAX_POSITIONS), default=1)


@dataclass(frozen=True, slots=True)
class _Runs:
    """Disjoint runs of blocks, half-open and ascending."""

    starts: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def of(cls, runs: Collection[tuple[int, int]]) -> _Runs:
        merged: list[list[int]] = []
        for start, stop in sorted(runs):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(stop, merged[-1][1])
            else:
                merged.append([start, stop])
        return cls(tuple(run[0] for run in merged), tuple(run[1] for run in merged))

    @property
    def count(self) -> int:
        return sum(self.stops) - sum(self.starts)

    def holds(self, start: int, stop: int) -> bool:
        at = bisect_right(self.starts, start) - 1
        return at >= 0 and stop <= self.stops[at]


def _blocks(layout: Layout, name: str, position: int) -> tuple[int, int]:
    """The blocks of a group that a graft at `position` needs (SPEC 3.2): of states the one whose end it is."""
    group, last = layout.group(name), -(-position // layout.block_tokens)
    first = group.first_needed(position) // layout.block_tokens if isinstance(group, Group) else last - 1
    return first, last
