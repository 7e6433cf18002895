"""`Decision`: restore what is stored, or compute it again, whichever is faster on this host; and why.

A match and its description have been looked up and verified by then, in either case. What is left to weigh is
reading, hashing and placing its bytes against computing its tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.graft.costs import Costs
from kvsync_protocol.fingerprint import Fingerprints

AUTO: Final = "auto"
ALWAYS: Final = "always"
NEVER: Final = "never"
WHEN: Final = (AUTO, ALWAYS, NEVER)

GRAFT: Final = "graft"
RECOMPUTE: Final = "recompute"

NEGLIGIBLE_S: Final = 0.25
"""A restore that is shorter is made: on a busy machine times of this length say more of its other work."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`choice` is "graft" or "recompute". Seconds as predicted, None where nothing was measured lately."""

    choice: str
    why: str
    restore_s: float | None = None
    prefill_s: float | None = None

    def as_dict(self) -> dict[str, object]:
        return {"decision": self.choice, "why": self.why, **predicted(self.restore_s, self.prefill_s)}


NOTHING: Final = Decision(RECOMPUTE, "nothing to graft")


def decide(when: str, costs: Costs | None, fingerprints: Fingerprints, position: int, size: int) -> Decision:
    """For a match of `position` tokens in `size` bytes; `when` is "auto", "always" or "never"."""
    cost = None if costs is None else costs.lately(fingerprints)
    if cost is None:
        known: tuple[float, float] | None = None
    else:
        known = cost.restore_s(size), cost.prefill_s(0, position)
    restore_s, prefill_s = known or (None, None)
    if when == NEVER:
        return Decision(RECOMPUTE, "never wanted", restore_s, prefill_s)
    if when == ALWAYS:
        return Decision(GRAFT, "always wanted", restore_s, prefill_s)
    if known is None:
        return Decision(GRAFT, "not measured yet")
    if known[0] <= NEGLIGIBLE_S:
        return Decision(GRAFT, "takes no time", *known)
    if known[0] < known[1]:
        return Decision(GRAFT, "faster than computing", *known)
    return Decision(RECOMPUTE, "computing is faster", *known)


def predicted(restore_s: float | None, prefill_s: float | None) -> dict[str, object]:
    """As JSON."""
    return {
        "predicted": {
            "restore_s": None if restore_s is None else round(restore_s, 6),
            "prefill_s": None if prefill_s is None else round(prefill_s, 6),
        }
    }
