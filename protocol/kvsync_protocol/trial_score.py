"""Receipts of kind `library`: what a library of verified solutions brings, from the records alone (SPEC 7.6).

Shares of passed problems with Wilson's 95 % interval; differences in percentage points with Newcombe's interval for
two samples, which is wide for problems that are the same in both. Sums of figures are exactly rounded.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kvsync_protocol import figure, receipt
from kvsync_protocol.receipt import Record
from kvsync_protocol.sample import check_spelling, contradiction
from kvsync_protocol.trial import (
    CONTROL,
    FILL,
    HELD_OUT,
    NEGATIVE,
    RECURRENCE,
    STREAM,
    TRAIN,
    TRANSFER,
    Asked,
    Trial,
)

KIND: Final = "library"
Z: Final = 1.959963984540054
"""The standard normal's 97.5 % point."""


class TrialScorer:
    """See `kvsync_protocol.receipt.Scorer`."""

    kind = KIND
    payload_type = receipt.PAYLOAD_TYPE

    def score(self, run: Record, records: Sequence[Record]) -> dict[str, object]:
        trial = Trial.parse(run)
        asked = [Asked.parse(record) for record in records]
        check_spelling(run, records, trial.as_json(), [each.as_json() for each in asked])
        for index, each in enumerate(asked):
            each.check(trial, index)
        by = {name: [each for each in asked if each.condition == name] for name in (*trial.conditions, FILL)}
        _check_problems(by)
        found: dict[str, object] = {"conditions": {name: _condition(each) for name, each in by.items() if each}}
        if STREAM in by:
            windows = [by[STREAM][at : at + trial.window] for at in range(0, len(by[STREAM]), trial.window)]
            found["windows"] = [_condition(window) for window in windows]
        if CONTROL in by:
            unaided = {split: [each for each in by[CONTROL] if each.split == split] for split in (TRAIN, HELD_OUT)}
            for name, split in ((RECURRENCE, TRAIN), (TRANSFER, HELD_OUT), (NEGATIVE, HELD_OUT)):
                if by.get(name):
                    found[name] = _against(by[name], unaided[split], by[FILL] if name == RECURRENCE else [])
        return found

    def inputs(self, record: Record) -> str:
        """A problem that a stream asks again is another input."""
        return f"{record['condition']} {record['problem']} {record['index']}"

    def outputs(self, record: Record) -> dict[str, str]:
        asked = Asked.parse(record)
        return {"passed": str(asked.passed), "answered": asked.answered or "-", "decoded": str(asked.decoded)}


def _check_problems(by: Mapping[str, Sequence[Asked]]) -> None:
    """Every condition asks all problems of its splits, each once; only a stream repeats itself."""
    known: dict[str, tuple[object, ...]] = {}
    for name, records in by.items():
        if not records and name != FILL:  # there may be nothing to store
            raise contradiction(f"the run has a condition {name} and no record of it")
        names = {each.task for each in records}
        if name != STREAM and len(names) < len(records):
            raise contradiction(f"a problem stands twice under {name}")
        for each in records:
            said = (each.problem, each.split, each.verifier.as_json())
            if known.setdefault(each.task, said) != said:
                raise contradiction(f"task {each.task} is not the same in every condition")
    for split, conditions in ((TRAIN, (CONTROL, RECURRENCE)), (HELD_OUT, (CONTROL, TRANSFER, NEGATIVE))):
        asked = [{each.task for each in by[name] if each.split == split} for name in conditions if name in by]
        asked = [found for found in asked if found]
        if any(found != asked[0] for found in asked):
            raise contradiction(f"not every condition asks the same {split} problems")


def _condition(records: Sequence[Asked]) -> dict[str, object]:
    """Accuracy, costs, and which strategy did what."""
    passed, tried = sum(each.passed for each in records), [tried for each in records for tried in each.attempts]
    low, high = wilson(passed, len(records))
    looked = [each for each in records if each.plain_tokens is not None]
    return {
        "problems": len(records),
        "passed": passed,
        "accuracy": figure.spell(passed / len(records)),
        "low": figure.spell(low),
        "high": figure.spell(high),
        "decoded": sum(each.decoded for each in tried),
        "prefilled": sum(each.prefilled for each in tried),
        "grafted": sum(each.grafted for each in tried),
        "seconds": _sum(each.seconds for each in records),
        "cpu_seconds": _sum(each.cpu_seconds for each in records),
        "joules": _sum(each.joules for each in records),
        "answered": _counted((each.answered, 1) for each in records if each.answered is not None),
        "attempts": _counted((each.strategy, each.tries) for each in tried if not each.skipped),
        "skipped": _counted((each.skipped, each.tries) for each in tried if each.skipped),
        "plain": {"checked": len(looked), "equal": sum(each.answer_tokens == each.plain_tokens for each in looked)},
    }


def _against(records: Sequence[Asked], unaided: Sequence[Asked], stored: Sequence[Asked]) -> dict[str, object]:
    """A condition beside the control on the same problems.

    `factor` is the control's decoded tokens over this condition's; the same for the problems that the control never
    solved. `break_even`: how often a stored solution must come back until its storing is paid for, in seconds.
    """
    never = {each.task for each in unaided if not each.passed}
    hard, hard_control = ([e for e in them if e.task in never] for them in (records, unaided))
    counts = sum(e.passed for e in records), len(records), sum(e.passed for e in unaided), len(unaided)
    low, high = newcombe(*counts)
    saved = (_total(unaided) - _total(records)) / len(records)
    pays = _total(stored) / len(stored) / saved if stored and saved > 0 else None
    return {
        "control_passed": counts[2],
        "points": figure.spell(100 * (counts[0] / counts[1] - counts[2] / counts[3])),
        "points_low": figure.spell(100 * low),
        "points_high": figure.spell(100 * high),
        "factor": _ratio(unaided, records),
        "never_solved": len(never),
        "never_solved_answered": sum(each.passed for each in hard),
        "never_solved_decoded": sum(each.decoded for each in hard),
        "never_solved_control_decoded": sum(each.decoded for each in hard_control),
        "never_solved_factor": _ratio(hard_control, hard),
        "break_even": None if pays is None else math.ceil(pays),
    }


def wilson(passed: int, count: int) -> tuple[float, float]:
    """Wilson's score interval of a share, 95 %."""
    share = passed / count
    middle = share + Z * Z / (2 * count)
    width = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return max(0.0, (middle - width) / scale), min(1.0, (middle + width) / scale)


def newcombe(passed: int, count: int, other_passed: int, other_count: int) -> tuple[float, float]:
    """Newcombe's interval (his method 10) of share minus other share, 95 %."""
    share, other = passed / count, other_passed / other_count
    (low, high), (other_low, other_high) = wilson(passed, count), wilson(other_passed, other_count)
    below = _length(share - low, other_high - other)
    above = _length(high - share, other - other_low)
    return share - other - below, share - other + above


def _length(one: float, other: float) -> float:
    """By operations that every implementation rounds alike."""
    return math.sqrt(one * one + other * other)


def _ratio(over: Sequence[Asked], under: Sequence[Asked]) -> str | None:
    tokens = sum(each.decoded for each in under)
    return figure.spell(sum(each.decoded for each in over) / tokens) if tokens else None


def _total(records: Iterable[Asked]) -> float:
    return math.fsum(each.seconds for each in records)


def _sum(values: Iterable[float]) -> str:
    return figure.spell(math.fsum(values))


def _counted(pairs: Iterable[tuple[str, int]]) -> dict[str, object]:
    counts: Counter[str] = Counter()
    for name, count in pairs:
        counts[name] += count
    return dict(sorted(counts.items()))


SCORER: Final = TrialScorer()
