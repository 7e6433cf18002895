"""`Evaluation`: ask every problem of a plan under every condition, and write down what came of it.

    scratch home    libraries "control" (empty), "filled" (solutions of train tasks), "unrelated", or "stream"
    user's home     the library that is measured in place of "filled", if one is given; nothing is stored in it

The conditions share engine, budget and recipe; nothing is stored while problems are asked, but in a stream. The
negative control opens the gate of related entries, so that an unrelated one is grafted and not only refused.
"""

from __future__ import annotations

import dataclasses
import shutil
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvsync.config import Home
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError, UsageError
from kvsync.files import make_private_dir
from kvsync.graft.client import Client
from kvsync.keys import NodeKeys
from kvsync.library.evaluation.energy import EnergyMeter, Spent
from kvsync.library.evaluation.journal import Journal
from kvsync.library.evaluation.plain import plain_tokens
from kvsync.library.evaluation.plan import Plan
from kvsync.library.evaluation.record import deposited, record, texts_room, tried
from kvsync.library.library import Library
from kvsync.library.recipe import Recipe
from kvsync.library.report import Cost, Solved
from kvsync.library.tasks import HELD_OUT, TRAIN, Task
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import Digest
from kvsync_protocol.trial import CONTROL, FILL, NEGATIVE, RECURRENCE, STREAM, TRANSFER, Asked, Trial, Tried

FILLED: Final = "filled"
UNRELATED: Final = "unrelated"


class Evaluation:
    """One run. `work` is a folder for its journal and its scratch home; it is removed by `finish`.

    Raises:
        UsageError: `eval.other_run`, `eval.split`, `eval.stream_library`; StoreError: `eval.damaged`, `store.*`.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        model: str,
        work: Path,
        *,
        meter: EnergyMeter | None = None,
        library: Library | None = None,
        progress: Progress = silent,
    ) -> None:
        self._meter = meter or EnergyMeter()
        self._engine = engine
        self._work = work
        self._given = library
        self._progress = progress
        self.plan = plan if library is None else _by_library(plan, library)
        self.plan.check_splits()
        self.trial: Trial = self.plan.trial(model, self._meter.source, self._meter.watts)
        self._recipe = replace(plan.recipe, seed=plan.seed, deposit=bool(plan.stream))
        self._plain_left: dict[str, int] = {}
        make_private_dir(work)
        prints = engine.fingerprints
        name = {**self.trial.as_json(), "plain": plan.plain, "library": None if library is None else library.name}
        self._journal = Journal(
            work / "journal",
            {**name, "compatibility": str(prints.compatibility.digest), "numerics": str(prints.numerics.digest)},
        )

    def run(self) -> list[Asked]:
        """All records in order. What the journal of a killed run holds is not computed again.

        Raises:
            CodedError: of a verifier that cannot judge here; EngineError; StoreError `store.*`.
            NotFoundError: `library.unknown` when a library that is being filled was removed.
        """
        with ExitStack() as stack:
            client = stack.enter_context(Client(_scratch(self._work / "home").root))
            if self.plan.stream:
                self._stream(_library(client, STREAM))
            else:
                self._conditions(client)
        return self._journal.records

    def finish(self) -> None:
        """Remove journal and scratch home."""
        shutil.rmtree(self._work)

    # conditions

    def _conditions(self, client: Client) -> None:
        plan = self.plan
        train, held_out = plan.of(TRAIN), plan.of(HELD_OUT)
        libraries = {CONTROL: _library(client, CONTROL)}
        used = set(plan.conditions) & {RECURRENCE, TRANSFER}
        alone = set(plan.conditions) == {CONTROL}
        come_back = train if alone or RECURRENCE in used else []
        others = held_out if alone or set(plan.conditions) & {TRANSFER, NEGATIVE} else []
        asked = {CONTROL: [*come_back, *others], RECURRENCE: train, TRANSFER: held_out, NEGATIVE: held_out}
        self._ask_all(CONTROL, libraries[CONTROL], asked[CONTROL], self._recipe)
        if used:
            filled = self._given or self._fill(_library(client, FILLED), train)
            libraries |= {RECURRENCE: filled, TRANSFER: filled}
        for name in plan.conditions:
            if name in used:
                self._ask_all(name, libraries[name], asked[name], self._recipe)
        if NEGATIVE in plan.conditions:
            unrelated = _library(client, UNRELATED)
            for task in plan.unrelated:
                if not unrelated.find(task.problem.address):
                    unrelated.add(task.problem.text, task.solution, self._engine, task.verifier())
            self._ask_all(NEGATIVE, unrelated, asked[NEGATIVE], replace(self._recipe, related_overlap=0.0))

    def _ask_all(self, condition: str, library: Library, tasks: list[Task], recipe: Recipe) -> None:
        done = {each.task for each in self._journal.records if each.condition == condition}
        for number, task in enumerate(tasks, 1):
            if task.id not in done:
                self._ask(condition, library, task, recipe)
            self._progress(condition, number, len(tasks), "problems")

    def _ask(self, condition: str, library: Library, task: Task, recipe: Recipe) -> Asked:
        stop = self._meter.start()
        solved = library.solve(
            task.problem.text,
            self._engine,
            task.verifier(),
            budget=self.plan.budget,
            recipe=recipe,
            progress=self._progress,
        )
        spent = stop()
        attempts = tried(solved, task, texts_room(self.plan.records))
        digests = self._as_plain(condition, library, task, solved)
        return self._keep(condition, task, attempts, spent, digests)

    def _fill(self, library: Library, tasks: list[Task]) -> Library:
        """Store each task's worked solution, or the one that the control found; nothing for a task without."""
        found = {each.task: each for each in self._journal.records if each.condition == CONTROL}
        done = {each.task for each in self._journal.records if each.condition == FILL}
        for number, task in enumerate(tasks, 1):
            solution = task.solution or _answer(found.get(task.id))
            if task.id not in done and solution:
                self._teach(library, task, solution)
            self._progress(FILL, number, len(tasks), "solutions")
        return library

    def _teach(self, library: Library, task: Task, solution: str) -> None:
        """Raises as `Library.add`, but a solution that its own verifier does not pass, which is left out."""
        stop, verifier = self._meter.start(), task.verifier()
        verdict = verifier.verify(task.problem, solution)
        if not verdict.passed:
            return
        if library.find(task.problem.address):  # stored, and killed before it was written down
            for stored in library.find(task.problem.address):
                library.remove(stored.digest)
        stored = library.deposit(task.problem, solution, self._engine, verifier, verdict, Cost())
        self._keep(FILL, task, (deposited(solution, stored.entry.tokens),), stop(), (None, None))

    def _stream(self, library: Library) -> None:
        """Ask in turn; what is solved is stored, and with `teach` the solution of what is not."""
        stream, done = self.plan.stream, sum(each.condition == STREAM for each in self._journal.records)
        met = {task.id for task in stream[:done]}
        for number, task in enumerate(stream[done:], done + 1):
            if task.id not in met:  # nothing of it was known, unless a run was killed behind its answer
                for stored in library.find(task.problem.address):
                    library.remove(stored.digest)
            met.add(task.id)
            record = self._ask(STREAM, library, task, self._recipe)
            if self.plan.teach and not record.passed and task.solution and not library.find(task.problem.address):
                self._teach(library, task, task.solution)
            self._progress(STREAM, number, len(stream), "problems")

    # records

    def _keep(
        self,
        condition: str,
        task: Task,
        attempts: tuple[Tried, ...],
        spent: Spent,
        digests: tuple[Digest | None, Digest | None],
    ) -> Asked:
        made = record(len(self._journal.records), condition, task, attempts, digests, spent)
        self._journal.add(made)
        return made

    def _as_plain(
        self, condition: str, library: Library, task: Task, solved: Solved
    ) -> tuple[Digest | None, Digest | None]:
        """What the last grafted attempt decoded, and what its tokens give as a plain prompt; or None twice."""
        if condition not in self._plain_left:
            known = [each for each in self._journal.records if each.condition == condition]
            self._plain_left[condition] = self.plan.plain - sum(each.plain_tokens is not None for each in known)
        grafted = [each for each in solved.attempts if each.graft and each.tokens is not None]
        if not grafted or self._plain_left[condition] < 1:
            return None, None
        self._plain_left[condition] -= 1
        try:
            plain = plain_tokens(library, self._engine, self._recipe, task.problem.text, grafted[-1])
        except NotFoundError:  # the library was emptied meanwhile
            return None, None
        return grafted[-1].tokens, plain


def _by_library(plan: Plan, library: Library) -> Plan:
    """What the library holds comes back, the rest is held out."""
    if plan.stream:
        raise UsageError("eval.stream_library", "a stream begins with an empty library", hint="leave --library out")
    known = [
        dataclasses.replace(task, split=TRAIN if library.find(task.problem.address) else HELD_OUT)
        for task in plan.tasks
    ]
    return replace(plan, tasks=tuple(known))


def _scratch(root: Path) -> Home:
    home = Home(root)
    if not (root / "keys").exists():
        home.create()
        NodeKeys.create(home)
    return home


def _library(client: Client, name: str) -> Library:
    try:
        return Library.open(client, name)
    except NotFoundError:
        return Library.create(client, name)


def _answer(control: Asked | None) -> str:
    """The candidate that passed, where one did."""
    return next((each.answer or "" for each in control.attempts if each.passed), "") if control else ""
