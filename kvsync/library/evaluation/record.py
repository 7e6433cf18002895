"""From what a solve reports to a record of the receipt. Texts are kept as far as a record has room for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kvsync.library.evaluation.energy import Spent
from kvsync.library.recipe import DEPOSIT
from kvsync.library.report import Attempt, Solved
from kvsync.library.tasks import Task
from kvsync_protocol.digest import Digest
from kvsync_protocol.entry import VerifierRecord
from kvsync_protocol.limits import KiB
from kvsync_protocol.strictjson import dumps
from kvsync_protocol.trial import Asked, Tried

MAX_TEXTS: Final = 40 * KiB
"""Room for the attempts of a record; a verifier's parameters and digests fit beside it."""


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


def tried(solved: Solved, task: Task) -> tuple[Tried, ...]:
    """Every attempt; failed ones that find no room are added up by strategy, without their texts."""
    made = [_tried(attempt, task) for attempt in solved.attempts]
    if solved.deposited is not None:
        cost = solved.deposited.cost
        made.append(Tried(DEPOSIT, 1, None, False, 0, cost.prefilled, 0, solved.deposited.refused))
    return tuple(_fitting(made))


def deposited(solution: str, tokens: int) -> Tried:
    """A solution that was verified and stored without being asked for."""
    return Tried(DEPOSIT, 1, clean(solution), True, 0, tokens, 0, "")


def clean(text: str) -> str:
    """As text may stand in a record: tabs and line feeds are the only control characters."""
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


def _fitting(attempts: list[Tried]) -> Iterator[Tried]:
    room = MAX_TEXTS - sum(len(dumps(each.as_json())) for each in attempts if each.passed)
    together: dict[tuple[str, str], Tried] = {}
    for each in attempts:
        size = len(dumps(each.as_json()))
        if each.passed or size <= room:
            room -= 0 if each.passed else size
            yield each
            continue
        key = each.strategy, each.skipped
        sums = together.get(key, Tried(each.strategy, 0, None, False, 0, 0, 0, each.skipped))
        together[key] = replace(
            sums,
            tries=sums.tries + 1,
            decoded=sums.decoded + each.decoded,
            prefilled=sums.prefilled + each.prefilled,
            grafted=sums.grafted + each.grafted,
        )
    yield from together.values()
