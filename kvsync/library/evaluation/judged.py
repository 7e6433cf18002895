"""Verdicts of a receipt judged again: what text and number verifiers say of an answer follows from the record alone.

Answers that programs, patterns or plug-ins have judged are taken as they are; running them again is for a host that
means to. Loads no model and no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvsync.library.problem import Problem
from kvsync.library.verifiers import load_verifier
from kvsync_protocol.errors import VersionError
from kvsync_protocol.receipt import Record
from kvsync_protocol.sample import contradiction
from kvsync_protocol.trial import Asked

PURE: Final = ("text", "normalised", "number")


@dataclass(frozen=True, slots=True)
class Judged:
    """How many verdicts were judged again, and how many were not: by other verifiers, or of an answer not kept."""

    again: int
    taken: int


def judge_again(records: Sequence[Record]) -> Judged:
    """Every verdict of a checked receipt that can be.

    Raises:
        IntegrityError: `receipt.score` when one is not what its verifier says of the recorded answer.
        UsageError: `verifier.*` for parameters that no verifier takes.
    """
    again = taken = 0
    for each in map(Asked.parse, records):
        answers = [tried for tried in each.attempts if tried.answer is not None]
        taken += sum(tried.tries for tried in each.attempts if tried.answer is None and tried.decoded)
        verifier = None
        if each.verifier.name in PURE:
            try:
                verifier = load_verifier(each.verifier.as_json())
            except VersionError:
                verifier = None  # another release judges otherwise; this one cannot say
        if verifier is None:
            taken += len(answers)
            continue
        problem = Problem("", "", each.problem)
        for tried in answers:
            if verifier.verify(problem, tried.answer or "").passed != tried.passed:
                raise contradiction(
                    f"record {each.index}: the verdict is not what {verifier.name} says of the answer"
                )
            again += 1
    return Judged(again, taken)
