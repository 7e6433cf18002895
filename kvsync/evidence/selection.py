"""Which blocks an audit recomputes: all, some drawn by chance, or this host's share of them.

    --blocks all | 3 | 10%        --share 2/3
    blocks   0 1 2 3 4 5 6 7 8 9 …
    shares   |── 1/3 ──|─ 2/3 ─|3/3|    disjoint, contiguous, of equal cost: later blocks see more tokens

Knows numbers only.
"""

from __future__ import annotations

import random
import re
import secrets
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from kvsync.errors import UsageError
from kvsync_protocol.layout import Group, Layout

ALL: Final = "all"
DOUBLING: Final = 12
"""A context of about so many times a layer's key width costs a token as much as the layer's weights do. By count of
operations it is some 16 to 18 (three query heads to a key head); attention runs slower than products with weights,
and 12 is what SmolLM2-135M takes on a CPU. Shares are balanced by it."""
_COUNT: Final = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_PERCENT: Final = re.compile(r"([1-9][0-9]?|100)%", re.ASCII)
_SHARE: Final = re.compile(r"([1-9][0-9]{0,5})/([1-9][0-9]{0,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Selection:
    """What to draw: `count` blocks, or `percent` of them, or all. `share` is (i, n) with 1 <= i <= n.

    A seed makes the draw repeatable; without one nobody can foresee it.
    """

    count: int | None = None
    percent: int | None = None
    share: tuple[int, int] = (1, 1)
    seed: int | None = None

    @classmethod
    def parse(cls, blocks: str = ALL, share: str = "1/1", seed: int | None = None) -> Selection:
        """Read the words of a command line.

        Raises:
            UsageError: `audit.blocks`, `audit.share`.
        """
        count = int(blocks) if _COUNT.fullmatch(blocks) else None
        percent = int(found.group(1)) if (found := _PERCENT.fullmatch(blocks)) else None
        if blocks != ALL and count is None and percent is None:
            raise UsageError(
                "audit.blocks",
                f"{blocks!r} names no blocks",
                hint='use "all", a number such as 3, or a part such as 10%',
            )
        parts = _SHARE.fullmatch(share)
        if parts is None or int(parts.group(1)) > int(parts.group(2)):
            raise UsageError("audit.share", f"{share!r} is no share", hint="use i/n, for example 2/3")
        number, total = int(parts.group(1)), int(parts.group(2))
        if total > 1 and blocks != ALL and seed is None:
            raise UsageError(
                "audit.share",
                "shares of blocks drawn by chance need --seed",
                hint="give every host the same seed, so that all draw the same blocks",
            )
        return cls(count, percent, (number, total), seed)

    def blocks(self, layout: Layout) -> tuple[int, ...]:
        """The blocks to recompute, ascending. Raises UsageError `audit.share` when a share would be empty."""
        chosen: Sequence[int] = range(layout.blocks)
        wanted = self.count if self.percent is None else -(-self.percent * layout.blocks // 100)
        if wanted is not None and wanted < layout.blocks:
            seed = secrets.randbits(64) if self.seed is None else self.seed
            chosen = sorted(random.Random(seed).sample(chosen, wanted))  # noqa: S311
        number, total = self.share
        if total > len(chosen):
            raise UsageError(
                "audit.share", f"{len(chosen)} blocks cannot be shared by {total}", hint="use a smaller n in i/n"
            )
        ends = _ends([block_cost(layout, block) for block in chosen], total)
        return tuple(chosen[ends[number - 1] : ends[number]])


def block_cost(layout: Layout, block: int) -> float:
    """About what a block costs to compute, in no unit; from the geometry alone, so that all hosts agree."""
    start, stop = layout.block_range(block)
    cost = 0.0
    for group in layout.groups:
        if isinstance(group, Group):
            width, seen = group.kv_heads * group.key_dim, (start + stop) / 2
            if group.window is not None:
                seen = min(seen, group.window)
            cost += len(group.layers) * width * (DOUBLING * width + seen)
    return (stop - start) * (cost or 1.0)


def _ends(costs: Sequence[float], parts: int) -> list[int]:
    """Where `parts` contiguous, non-empty parts of about equal cost begin and end: `parts + 1` places."""
    sums = [0.0, *accumulate(costs)]
    ends = [0]
    for part in range(1, parts):
        goal = sums[-1] * part / parts
        place = bisect_left(sums, goal)
        if goal - sums[place - 1] < sums[place] - goal:
            place -= 1
        ends.append(min(max(place, ends[-1] + 1), len(costs) - (parts - part)))
    return [*ends, len(costs)]
