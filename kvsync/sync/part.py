"""`Part`: how much of an artifact a pull is for: all of it, or what a graft begins with after so many tokens.

Where grafts can begin is known only from the signed geometry, so a part is asked for in tokens or blocks and becomes
a position once the manifest is here.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvsync.errors import UsageError
from kvsync.store import StoredArtifact
from kvsync.store.extent import Extent
from kvsync_protocol.layout import Layout
from kvsync_protocol.limits import MAX_TOKENS


@dataclass(frozen=True, slots=True)
class Part:
    """The first `tokens`, or `blocks`, of an artifact; without either all of it.

    Raises:
        UsageError: `pull.part` for both at once, or less than one.
    """

    tokens: int | None = None
    blocks: int | None = None

    def __post_init__(self) -> None:
        given = [number for number in (self.tokens, self.blocks) if number is not None]
        if len(given) > 1 or not all(1 <= number <= MAX_TOKENS for number in given):
            raise UsageError("pull.part", "a part is a number of tokens or of blocks, 1 or more")

    def position(self, layout: Layout) -> int | None:
        """The last place in the part at which a graft can begin; None for all of the artifact.

        Raises:
            UsageError: `pull.part` when there is none.
        """
        if self.tokens is None and self.blocks is None:
            return None
        asked = self.tokens if self.tokens is not None else (self.blocks or 0) * layout.block_tokens
        found = layout.restorable(asked)
        if not found:
            first = next(
                (p for n in range(1, layout.blocks + 1) if (p := layout.restorable(n * layout.block_tokens))), 0
            )
            raise UsageError(
                "pull.part",
                f"no graft can begin within the first {asked} tokens of this artifact",
                hint=f"the first place is after {first or layout.tokens} tokens",
            )
        return found


def extent(layout: Layout, position: int | None) -> Extent | None:
    """The chunks of a part; None when that is all of the artifact."""
    return None if position is None else Extent.of(layout, [position])


def covers(stored: StoredArtifact, position: int | None) -> bool:
    """Whether an artifact here holds what is asked for."""
    return stored.extent is None or (position is not None and stored.covers(position))
