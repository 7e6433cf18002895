"""The canonical schedule: where prefill is cut into forward calls (SPEC 3.1).

        0         256       512   600   768
        |---------|---------|-----|-----|---      block_tokens = 256, boundaries = (600, …)
         segment 0 segment 1 seg 2 seg 3

Cuts are every absolute multiple of `block_tokens` and the boundaries. A fresh run and a grafted run
that share the cuts make the same calls on the same inputs from the graft's position on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import BLOCK_TOKENS, MAX_BLOCK_TOKENS, MAX_BOUNDARIES, MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Schedule:
    """`boundaries` are strictly increasing absolute positions, none a multiple of `block_tokens`.

    Raises:
        MalformedError: `schedule.block_tokens` or `schedule.boundaries`.
    """

    block_tokens: int = BLOCK_TOKENS
    boundaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.block_tokens <= MAX_BLOCK_TOKENS:
            raise MalformedError("schedule.block_tokens", f"block_tokens is not in 1..{MAX_BLOCK_TOKENS}")
        last = 0
        if len(self.boundaries) > MAX_BOUNDARIES:
            raise MalformedError("schedule.boundaries", "too many boundaries")
        for place in self.boundaries:
            if not last < place <= MAX_TOKENS or place % self.block_tokens == 0:
                raise MalformedError(
                    "schedule.boundaries", "boundaries increase strictly and are no multiples of block_tokens"
                )
            last = place

    def with_boundary(self, place: int) -> Schedule:
        """The same schedule cut at `place` as well; a multiple of `block_tokens` changes nothing."""
        if place % self.block_tokens == 0 or place in self.boundaries:
            return self
        return Schedule(self.block_tokens, tuple(sorted((*self.boundaries, place))))

    def next_cut(self, position: int) -> int:
        """The first cut after `position`."""
        block_end = (position // self.block_tokens + 1) * self.block_tokens
        later = bisect_right(self.boundaries, position)
        if later < len(self.boundaries):
            return min(block_end, self.boundaries[later])
        return block_end

    def segments(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The forward calls that compute tokens start..stop, as half-open ranges."""
        while start < stop:
            cut = min(self.next_cut(start), stop)
            yield start, cut
            start = cut

    def cuts_inside(self, block: int) -> tuple[int, ...]:
        """Boundaries strictly inside a block, as offsets from the block's start."""
        begin = block * self.block_tokens
        first = bisect_right(self.boundaries, begin)
        last = bisect_left(self.boundaries, begin + self.block_tokens)
        return tuple(place - begin for place in self.boundaries[first:last])
