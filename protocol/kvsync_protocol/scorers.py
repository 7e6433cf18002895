"""Every kind of receipt that this build can check. A new kind is a scorer and an entry here."""

from __future__ import annotations

from typing import Final

from kvsync_protocol import exactness, prereg, trial_score
from kvsync_protocol.receipt import Scorer

SCORERS: Final[tuple[Scorer, ...]] = (
    exactness.SCORER,
    prereg.PREREG_SCORER,
    prereg.REPLAY_SCORER,
    trial_score.SCORER,
)


def scorer(kind: str) -> Scorer:
    """The scorer of a checked receipt's kind. Raises KeyError for one that is none; a caller's mistake."""
    return {each.kind: each for each in SCORERS}[kind]
