"""Which families of tasks there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kvsync.errors import NotFoundError, UsageError
from kvsync.library.tasks import handbook, labels, procedures, programs
from kvsync.library.tasks.task import Task

FAMILIES: Final[dict[str, Callable[[int, int], list[Task]]]] = {
    handbook.NAME: handbook.tasks,
    procedures.NAME: procedures.tasks,
    programs.NAME: programs.tasks,
    labels.NAME: labels.tasks,
}
CORPORA: Final[dict[str, Callable[[int, int], dict[str, str]]]] = {handbook.NAME: handbook.corpus}
"""Families whose answers stand in documents: their names and texts, as a task's `source` names them."""
MAX_COUNT: Final = 100_000


def generate(family: str, *, seed: int, count: int) -> list[Task]:
    """`count` tasks of a family; about half of them are held out. The first tasks of a seed do not depend on `count`.

    Raises:
        NotFoundError: `tasks.family`.
        UsageError: `tasks.count`, `tasks.seed`.
    """
    if family not in FAMILIES:
        raise NotFoundError("tasks.family", f"there is no family {family!r}", hint=f"one of {', '.join(FAMILIES)}")
    if not 1 <= count <= MAX_COUNT:
        raise UsageError("tasks.count", f"a count lies in 1..{MAX_COUNT}")
    if not 0 <= seed < 2**63:
        raise UsageError("tasks.seed", "a seed lies in 0..2^63-1")
    return FAMILIES[family](seed, count)


def corpus(family: str, *, seed: int, count: int) -> dict[str, str]:
    """Names and texts of the documents that the answers of `generate`'s tasks stand in.

    Raises:
        UsageError: `tasks.corpus` for a family without documents.
    """
    if family not in CORPORA:
        raise UsageError(
            "tasks.corpus", f"family {family} has no documents", hint=f"documents has {', '.join(CORPORA)}"
        )
    return CORPORA[family](seed, count)
