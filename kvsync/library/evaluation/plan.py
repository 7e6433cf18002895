"""`Plan`: which problems are asked under which condition, and with which settings. Knows no model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kvsync.errors import UsageError
from kvsync.library.recipe import Recipe
from kvsync.library.tasks import FAMILIES, HELD_OUT, TRAIN, Task, generate, write_tasks
from kvsync.library.tasks.draws import Draws
from kvsync.library.verifiers import VerifierSpec
from kvsync_protocol import figure
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.limits import MAX_FIELD_BYTES, MAX_RECORDS
from kvsync_protocol.strictjson import dumps
from kvsync_protocol.trial import ASKED, CONTROL, NEGATIVE, SPLITS_OF, STREAM, Trial

UNRELATED: Final = 40
"""Entries of a negative control that nobody names others for."""
WINDOWS: Final = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked. `tasks` hold each problem once; `stream` is their order in a stream, empty without one."""

    tasks: tuple[Task, ...]
    conditions: tuple[str, ...] = ASKED
    budget: int = 256
    seed: int = 0
    recipe: Recipe = field(default_factory=Recipe)
    unrelated: tuple[Task, ...] = ()
    stream: tuple[Task, ...] = ()
    repeats: int = 0
    teach: bool = False
    plain: int = 0
    """For so many grafted answers of each condition the same tokens are decoded as a plain prompt, too."""

    def __post_init__(self) -> None:
        """Raises UsageError `eval.*`, `solve.budget`."""
        if self.budget < 1:
            raise UsageError(
                "solve.budget", f"a budget of {self.budget} tokens answers nothing", hint="give at least 1"
            )
        if not self.tasks:
            raise UsageError("eval.no_tasks", "there is nothing to ask")
        if self.records > MAX_RECORDS:
            raise UsageError("eval.too_many", f"a receipt holds {MAX_RECORDS} records", hint="give --per-split")
        for task in self.tasks:
            if len(dumps(dict(task.verifier().parameters))) > MAX_FIELD_BYTES:
                raise UsageError(
                    "eval.parameters", f"task {task.id}: its verifier has more than {MAX_FIELD_BYTES} bytes"
                )

    @property
    def records(self) -> int:
        """As many as the receipt may have: of what is asked, and of what is stored."""
        return (len(self.stream) or len(self.tasks) * len(self.conditions)) + len(self.tasks)

    def check_splits(self) -> None:
        """Raises UsageError `eval.split` for a condition that would ask nothing."""
        for condition in () if self.stream else self.conditions:
            splits = SPLITS_OF[condition]
            if not any(task.split in splits for task in self.tasks):
                raise UsageError(
                    "eval.split",
                    f"{condition} asks {splits[0]} problems, and there are none",
                    hint="give other --conditions",
                )

    def of(self, split: str) -> list[Task]:
        return [task for task in self.tasks if task.split == split]

    def trial(self, model: str, energy: str, watts: float) -> Trial:
        """The settings as a receipt has them."""
        recipe = dataclasses.replace(self.recipe, seed=self.seed)
        conditions = (STREAM,) if self.stream else self.conditions
        return Trial(
            model=model,
            tasks=digest_of(self.tasks),
            unrelated=digest_of(self.unrelated) if NEGATIVE in conditions else None,
            conditions=conditions,
            budget=self.budget,
            seed=self.seed,
            window=max(1, -(-len(self.stream) // WINDOWS)) if self.stream else 0,
            repeats=self.repeats,
            teach=self.teach,
            recipe={name: _plain(value) for name, value in dataclasses.asdict(recipe).items()},
            energy=energy,
            watts=watts,
        )


def digest_of(tasks: Sequence[Task]) -> Digest:
    """Names tasks by all that is in them."""
    return sha256(write_tasks(tasks))


def different(tasks: Sequence[Task], verifier: str | None = None) -> tuple[Task, ...]:
    """Each problem once, however its white space is written; judged by `verifier` with the task's own truth.

    Raises:
        UsageError: `verifier.*`; NotFoundError `verifier.unknown`.
    """
    found: dict[Digest, Task] = {}
    for task in tasks:
        judged = task
        if verifier is not None:
            truth = {name: task.spec.parameters[name] for name in ("answer", "tests") if name in task.spec.parameters}
            judged = dataclasses.replace(task, spec=VerifierSpec.parse(verifier).adding(**truth))
        found.setdefault(task.problem.address, judged)
    return tuple(found.values())


def at_most(tasks: Sequence[Task], per_split: int) -> tuple[Task, ...]:
    """The first tasks of each split, in their order."""
    left = {TRAIN: per_split, HELD_OUT: per_split}
    found = []
    for task in tasks:
        if left[task.split] > 0:
            left[task.split] -= 1
            found.append(task)
    return tuple(found)


def unrelated_to(tasks: Sequence[Task], seed: int) -> tuple[Task, ...]:
    """Tasks of a family that none of `tasks` is of."""
    used = {task.family for task in tasks}
    family = next((name for name in FAMILIES if name not in used), next(iter(FAMILIES)))
    return tuple(generate(family, seed=seed, count=UNRELATED))


def stream_of(tasks: Sequence[Task], length: int, repeats: int, seed: int) -> tuple[Task, ...]:
    """`length` problems: new ones in their order, and in `repeats` of 100 places, by chance, one that was there.

    When there are no new ones left, all that follow were there.
    """
    draws, met, found = Draws(seed, "stream"), 0, list[Task]()
    for _ in range(length):
        again = met > 0 and draws.below(100) < repeats
        if again or met == len(tasks):
            found.append(tasks[draws.below(met)])
        else:
            found.append(tasks[met])
            met += 1
    return tuple(found)


def chosen(conditions: Sequence[str]) -> tuple[str, ...]:
    """Conditions in their order, the control always among them. Raises UsageError `eval.condition`."""
    for name in conditions:
        if name not in ASKED:
            raise UsageError("eval.condition", f"there is no condition {name!r}", hint=f"some of {', '.join(ASKED)}")
    return tuple(name for name in ASKED if name in conditions or name == CONTROL)


def _plain(value: object) -> object:
    if isinstance(value, float):
        return figure.spell(value)
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
