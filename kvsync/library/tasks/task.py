"""`Task`: a problem with the truth about it, and the JSONL files that hold tasks.

One JSON object a line. `problem` and `answer` (text or a whole number) or `tests` are required; `id`, `family`,
`verifier`, `split`, `solution` and `source` may be absent. A line with none of `family`, `verifier`, `split`, `tests`
and `source` is taken as it is found elsewhere (AIME files, for example) and may have other members too, in any case.
Knows no model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NoReturn

from kvsync.errors import UsageError
from kvsync.files import read_limited
from kvsync.library.problem import Problem
from kvsync.library.verifiers import Verifier, VerifierSpec, is_verifier, load_verifier, verifier_names
from kvsync_protocol.digest import Digest, hash_record
from kvsync_protocol.errors import CodedError, MalformedError
from kvsync_protocol.limits import MiB
from kvsync_protocol.strictjson import dumps, loads

TRAIN: Final = "train"
HELD_OUT: Final = "held-out"
SPLITS: Final = (TRAIN, HELD_OUT)
MAX_FILE_BYTES: Final = 256 * MiB
MAX_LINE_BYTES: Final = 1 * MiB
MAX_ID_CHARS: Final = 200
_OURS: Final = ("family", "verifier", "split", "tests", "source")
_FOREIGN: Final = ("id", "problem", "answer")
_MEMBERS: Final = ("id", "problem", "answer", "solution", *_OURS)


@dataclass(frozen=True, slots=True)
class Task:
    """A problem, what verifies an answer to it, and where it belongs.

    `solution` is a worked solution that the verifier passes, "" where there is none; `source` names the document the
    answer stands in, "" where there is none.
    """

    id: str
    family: str
    problem: Problem
    spec: VerifierSpec
    split: str
    solution: str = ""
    source: str = ""

    def verifier(self, *, without: Iterable[str] = ()) -> Verifier:
        """The verifier, with this task's truth among its parameters. Raises what `load_verifier` does."""
        return load_verifier(self.spec, without=without)

    def as_dict(self) -> dict[str, object]:
        """A line that reads back as this task."""
        truth = {name: self.spec.parameters[name] for name in ("answer", "tests") if name in self.spec.parameters}
        rest = {name: value for name, value in self.spec.parameters.items() if name not in truth}
        optional = {name: value for name, value in (("solution", self.solution), ("source", self.source)) if value}
        return {
            "id": self.id,
            "family": self.family,
            "problem": self.problem.text,
            "verifier": replace(self.spec, parameters=rest).as_dict(),
            "split": self.split,
            **truth,
            **optional,
        }


def split_of(identity: str) -> str:
    """The split of a task by its id: half of all ids are held out, whoever asks."""
    return SPLITS[hash_record("kvsync/task/split/1", [identity.encode()]).raw[0] & 1]


def write_tasks(tasks: Iterable[Task]) -> bytes:
    """A file of tasks; `parse_tasks(write_tasks(t)) == t`."""
    return b"".join(dumps(task.as_dict()) + b"\n" for task in tasks)


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file.

    Raises:
        NotFoundError: `file.missing`; StoreError `file.*`.
        MalformedError: as `parse_tasks`.
    """
    return parse_tasks(read_limited(path, MAX_FILE_BYTES, what="the task file"), str(path))


def parse_tasks(data: bytes, name: str = "tasks") -> list[Task]:
    """The tasks of a file's bytes, in order; blank lines count for nothing.

    Raises:
        MalformedError: `tasks.line` for a line that is no task, `tasks.no_answer`, `tasks.duplicate_id`,
            `tasks.both_splits` for a problem that is trained on and held out, `tasks.empty`. Each names the line.
    """
    tasks: list[Task] = []
    ids: dict[str, int] = {}
    problems: dict[Digest, tuple[int, str]] = {}
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        task = _task(line, f"{name}, line {number}")
        if task.id in ids:
            _refuse("duplicate_id", f"{name}, line {number}: id {task.id!r} stands in line {ids[task.id]} already")
        ids[task.id] = number
        first, split = problems.setdefault(task.problem.address, (number, task.split))
        if split != task.split:
            _refuse("both_splits", f"{name}, line {number}: the problem of line {first}, which is in split {split}")
        tasks.append(task)
    if not tasks:
        _refuse("empty", f"{name} holds no task")
    return tasks


def _task(line: bytes, where: str) -> Task:
    try:
        found = loads(line, limit=MAX_LINE_BYTES, what="the line")
        if not any(member in found for member in _OURS):
            found = _from_elsewhere(found)
        return _read(found, where)
    except MalformedError as error:
        if error.code.startswith("tasks."):
            raise
        _refuse("line", f"{where}: {error.message}", hint=error.hint)
    except CodedError as error:
        _refuse("line", f"{where}: {error.message}", hint=error.hint)


def _from_elsewhere(found: Mapping[str, object]) -> dict[str, object]:
    """What kvsync reads of a line that was not written for it. Its `solution` is no tested one, and left."""
    lower = {name.lower(): value for name, value in found.items()}
    taken: dict[str, object] = {name: lower[name] for name in _FOREIGN if name in lower}
    answer = taken.get("answer")
    if isinstance(answer, str) and answer.strip().isascii() and answer.strip().isdigit() and len(answer.strip()) < 16:
        taken["answer"] = int(answer)  # "025" is 25
    return taken


def _read(found: Mapping[str, object], where: str) -> Task:
    unknown = set(found) - set(_MEMBERS)
    if unknown:
        _refuse("line", f"{where}: unknown member {min(unknown)!r}")
    text = _text(found, "problem", where)
    if text is None:
        _refuse("line", f"{where}: the problem is missing")
    problem = Problem.of(text)
    identity = found.get("id", f"p-{problem.address.short}")
    identity = str(identity) if type(identity) is int else identity
    if not isinstance(identity, str) or not 0 < len(identity) <= MAX_ID_CHARS or not identity.isprintable():
        _refuse("line", f"{where}: the id is no short printable text")
    split = found.get("split", split_of(identity))
    if split not in SPLITS:
        _refuse("line", f"{where}: the split is neither {TRAIN} nor {HELD_OUT}")
    return Task(
        identity,
        _text(found, "family", where) or "",
        problem,
        _spec(found, where),
        str(split),
        _text(found, "solution", where) or "",
        _text(found, "source", where) or "",
    )


def _spec(found: Mapping[str, object], where: str) -> VerifierSpec:
    """The verifier with the truth; without one, `python` for tests, `number` for a number, else `normalised`."""
    answer, tests = found.get("answer"), _text(found, "tests", where)
    if answer is not None and (not isinstance(answer, str | int) or isinstance(answer, bool)):
        _refuse("line", f"{where}: the answer is neither text nor a whole number", hint='write "0.5", not 0.5')
    if answer is None and tests is None:
        _refuse("no_answer", f"{where}: the task has neither answer nor tests")
    default = "python" if tests is not None else "number" if isinstance(answer, int) else "normalised"
    given = found.get("verifier", default)
    if not isinstance(given, str | Mapping):
        _refuse("line", f"{where}: the verifier is neither text nor a table")
    spec = VerifierSpec.parse(given)
    if not is_verifier(spec.name):
        _refuse("line", f"{where}: there is no verifier {spec.name!r}", hint=f"one of {', '.join(verifier_names())}")
    if isinstance(answer, int):
        answer = str(answer)
    if answer is not None:
        spec = spec.adding(answer=answer)
    return spec if tests is None else spec.adding(tests=tests)


def _text(found: Mapping[str, object], name: str, where: str) -> str | None:
    value = found.get(name)
    if value is not None and not isinstance(value, str):
        _refuse("line", f"{where}: {name} is not text")
    return value


def _refuse(kind: str, message: str, *, hint: str = "") -> NoReturn:
    raise MalformedError(f"tasks.{kind}", message, hint=hint)


def made(family: str, seed: int, count: int, make: Callable[[int], tuple[str, VerifierSpec, str, str]]) -> list[Task]:
    """`count` tasks with different problems. `make(n)` gives problem, verifier, solution and source of draw `n`.

    Raises:
        UsageError: `tasks.count` when the family has no more different problems.
    """
    tasks: list[Task] = []
    seen: set[Digest] = set()
    for number in range(count * 4 + 64):
        if len(tasks) == count:
            break
        text, spec, solution, source = make(number)
        problem = Problem.of(text)
        if problem.address in seen:
            continue
        seen.add(problem.address)
        identity = f"{family}-{seed}-{number:06d}"
        tasks.append(Task(identity, family, problem, spec, split_of(identity), solution, source))
    if len(tasks) < count:
        raise UsageError("tasks.count", f"family {family} has only {len(tasks)} different problems of this seed")
    return tasks
