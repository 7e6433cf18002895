"""From what a solve reports to a record of the receipt, with the text of every candidate that was judged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from kvsync.library.evaluation.energy import Spent
from kvsync.library.recipe import DEPOSIT
from kvsync.library.report import Attempt, Solved
from kvsync.library.tasks import Task
from kvsync_protocol.digest import Digest
from kvsync_protocol.entry import VerifierRecord
from kvsync_protocol.limits import MAX_RECEIPT_BYTES, MAX_RECORD_BYTES, KiB
from kvsync_protocol.strictjson import dumps
from kvsync_protocol.trial import Asked, Tried

_BESIDE: Final = 256 * KiB
"""More than a verifier's parameters, digests and counts take in a record."""
MAX_ANSWER_CHARS: Final = 128 * KiB
"""The end of a longer candidate is what is recorded and judged; at most four bytes each, so one always fits."""


def record(
    index: int,
    condition: str,
    task: Task,
    attempts: tuple[Tried, ...],
    digests: tuple[Digest | None, Digest | None],
    spent: Spent,
) -> Asked:
    verifier = task.verifier()
    return Asked(
        index=index,
        condition=condition,
        task=task.id,
        problem=task.problem.address,
        split=task.split,
        verifier=VerifierRecord(verifier.name, verifier.version, dict(verifier.parameters)),
        attempts=attempts,
        answer_tokens=digests[0],
        plain_tokens=digests[1],
        seconds=spent.seconds,
        cpu_seconds=spent.cpu_seconds,
        joules=spent.joules,
    )


def texts_room(records: int) -> int:
    """Bytes for the candidates of each record of a receipt that has so many; a quarter is left for what is beside."""
    return min(MAX_RECORD_BYTES - _BESIDE, MAX_RECEIPT_BYTES // 4 * 3 // records)


def tried(solved: Solved, task: Task, room: int) -> tuple[Tried, ...]:
    """Every attempt; failed ones of one strategy, one behind the other, stand together.

    With more than `room` bytes of candidates the one that answered is kept and the others as far as they fit.
    """
    made = [_tried(attempt, task) for attempt in solved.attempts]
    if solved.deposited is not None:
        cost = solved.deposited.cost
        made.append(Tried(DEPOSIT, 1, None, False, 0, cost.prefilled, 0, solved.deposited.refused))
    return tuple(_fitting(made, room))


def deposited(solution: str, tokens: int) -> Tried:
    """A solution that was verified and stored without being asked for."""
    return Tried(DEPOSIT, 1, clean(solution), True, 0, tokens, 0, "")


def clean(text: str) -> str:
    """As text may stand in a record: not too long, tabs and line feeds the only control characters."""
    text = text[-MAX_ANSWER_CHARS:]
    return "".join(each if each.isprintable() or each in "\t\n" or ord(each) > 0x9F else " " for each in text)


def _tried(attempt: Attempt, task: Task) -> Tried:
    judged = attempt.verdict is not None
    answer, passed = clean(attempt.answer), attempt.passed
    if judged and answer != attempt.answer:
        passed = task.verifier().verify(task.problem, answer).passed  # the record's text is what must be judged again
    cost = attempt.cost
    return Tried(
        attempt.strategy,
        1,
        answer if judged else None,
        passed,
        cost.decoded,
        cost.prefilled,
        cost.grafted,
        attempt.passed_over,
    )


def _fitting(attempts: Sequence[Tried], room: int) -> Iterator[Tried]:
    """What does not fit is added up by strategy without texts, and no verdict on it is claimed."""
    answered = next((each for each in attempts if each.passed), None)
    room -= 0 if answered is None else _size(answered)
    kept, left_out = list[Tried](), list[Tried]()
    for each in attempts:
        size = 0 if each is answered else _size(each)
        (kept if size <= room else left_out).append(each)
        room -= size if size <= room else 0
    for (_, failed), run in groupby(kept, key=lambda each: (each.strategy, _failed(each))):
        together = list(run)
        yield from [_together(together, [each.answer or "" for each in together])] if failed else together
    for strategy in dict.fromkeys(each.strategy for each in left_out):
        yield _together([each for each in left_out if each.strategy == strategy], [])


def _failed(each: Tried) -> bool:
    return each.answer is not None and not each.passed


def _size(each: Tried) -> int:
    return 0 if each.answer is None else len(dumps(each.answer)) + len(",")


def _together(attempts: Sequence[Tried], answers: Sequence[str]) -> Tried:
    """Attempts of one strategy as one, with their candidates or without; one alone with its text stays as it is."""
    if len(attempts) == 1 and answers:
        return attempts[0]
    return Tried(
        attempts[0].strategy,
        len(attempts),
        None,
        False,
        sum(each.decoded for each in attempts),
        sum(each.prefilled for each in attempts),
        sum(each.grafted for each in attempts),
        "",
        tuple(answers),
    )
