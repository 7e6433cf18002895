"""Verdicts of a receipt judged again: what a verifier says of an answer, where that follows from the record alone.

Texts and numbers are judged always. What a pattern, a schema, mathematics or Python says of an answer can take its
time, and runs what the receipt's signer wrote, in processes that can be killed and in the sandbox: only when asked.
Commands and plug-ins may read the problem, and votes are cast once; those are taken as they are. Loads no model and
no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvsync.library.problem import Problem
from kvsync.library.recipe import DEPOSIT
from kvsync.library.verifiers import Verifier, load_verifier
from kvsync.progress import Progress, silent
from kvsync_protocol.errors import VersionError
from kvsync_protocol.receipt import Record
from kvsync_protocol.sample import contradiction
from kvsync_protocol.trial import Asked, Tried

PURE: Final = ("text", "normalised", "number")
BOUNDED: Final = ("regex", "schema", "math", "python")


@dataclass(frozen=True, slots=True)
class Judged:
    """How many verdicts were judged again, and how many were not: by verifiers that did not run here (`taken`), or
    of answers whose text the receipt does not hold (`unkept`)."""

    again: int
    taken: int
    unkept: int

    @property
    def every(self) -> int:
        return self.again + self.taken + self.unkept


def judge_again(records: Sequence[Record], *, run: bool = False, progress: Progress = silent) -> Judged:
    """Every verdict of a checked receipt that can be, those of `BOUNDED` verifiers if they shall `run`.

    Raises:
        IntegrityError: `receipt.score` when one is not what its verifier says of the recorded answer.
        UsageError: `verifier.*` for parameters that no verifier takes, or an extra that is not installed.
        PolicyError: `sandbox.isolation`; UnavailableError `verifier.start` when this host cannot run what it shall.
    """
    again = taken = unkept = 0
    for number, each in enumerate(map(Asked.parse, records), 1):
        unkept += sum(tried.tries for tried in each.attempts if _unkept(tried))
        answers = [(text, tried.passed) for tried in each.attempts for text in tried.candidates]
        verifier = _verifier(each, BOUNDED if run else ()) if answers else None
        if verifier is None:
            taken += len(answers)
            continue
        problem = Problem("", "", each.problem)
        for text, passed in answers:
            if verifier.verify(problem, text).passed != passed:
                raise contradiction(
                    f"record {each.index}: the verdict is not what {verifier.name} says of the answer"
                )
        again += len(answers)
        progress("judge", number, len(records), "records")
    return Judged(again, taken, unkept)


def _unkept(tried: Tried) -> bool:
    """Whether something was decoded or tried, and what was judged is not here."""
    return not tried.candidates and (tried.decoded > 0 or not (tried.skipped or tried.strategy == DEPOSIT))


def _verifier(asked: Asked, more: Sequence[str]) -> Verifier | None:
    """The record's own, if it is to be asked; None also for another release's, which may judge otherwise."""
    if asked.verifier.name not in (*PURE, *more):
        return None
    try:
        return load_verifier(asked.verifier.as_json())
    except VersionError:
        return None
