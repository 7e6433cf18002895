"""What a library evaluation records: one problem under one condition, with every attempt made at it (SPEC 7.6).

    control     an empty library           train and held-out problems
    fill        a solution is stored       train problems; no question is asked
    recurrence  the filled library         the train problems come back
    transfer    the filled library         held-out problems of the same family
    negative    unrelated entries          held-out problems
    stream      empty at first             problems in turn, some of them again

Knows no verifier: an answer and its verdict are data here, `trial_score` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import figure
from kvsync_protocol.digest import Digest
from kvsync_protocol.entry import VerifierRecord
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_LIST_ENTRIES, MAX_NAME_CHARS, MAX_RECORD_BYTES, MAX_RECORDS
from kvsync_protocol.sample import FAMILY, contradiction
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER, Fields

CONTROL: Final = "control"
FILL: Final = "fill"
RECURRENCE: Final = "recurrence"
TRANSFER: Final = "transfer"
NEGATIVE: Final = "negative"
STREAM: Final = "stream"
ASKED: Final = (CONTROL, RECURRENCE, TRANSFER, NEGATIVE)
TRAIN: Final = "train"
HELD_OUT: Final = "held-out"
SPLITS_OF: Final[Mapping[str, tuple[str, ...]]] = {
    CONTROL: (TRAIN, HELD_OUT),
    FILL: (TRAIN, HELD_OUT),
    RECURRENCE: (TRAIN,),
    TRANSFER: (HELD_OUT,),
    NEGATIVE: (HELD_OUT,),
    STREAM: (TRAIN, HELD_OUT),
}
"""Which problems a condition asks. What a stream is taught may be of either split."""
ENERGY_SOURCES: Final = ("nvml", "rapl", "estimate")


@dataclass(frozen=True, slots=True)
class Trial:
    """A run's settings. `watts` is 0 unless the energy is an estimate: CPU seconds times it.

    `tasks` is SHA-256 of the tasks as kvsync writes them, `unrelated` that of the negative control's, null without.
    A stream has windows of `window` problems, `repeats` percent of it come again, and with `teach` the solution of
    a problem that was not answered is stored behind it.
    """

    model: str
    tasks: Digest
    unrelated: Digest | None
    conditions: tuple[str, ...]
    budget: int
    seed: int
    window: int
    repeats: int
    teach: bool
    recipe: Mapping[str, object]
    energy: str
    watts: float

    @classmethod
    def parse(cls, value: object) -> Trial:
        """Raises MalformedError `receipt.*`; IntegrityError `receipt.score`."""
        fields = Fields(value, FAMILY)
        found = cls(
            fields.string("model", limit=MAX_NAME_CHARS),
            fields.digest("tasks"),
            fields.optional("unrelated", fields.digest),
            fields.strings("conditions", limit=len(ASKED), each=MAX_NAME_CHARS),
            fields.integer("budget", 1, MAX_SAFE_INTEGER),
            fields.integer("seed", 0, MAX_SAFE_INTEGER),
            fields.integer("window", 0, MAX_RECORDS),
            fields.integer("repeats", 0, 100),
            fields.boolean("teach"),
            fields.mapping("recipe"),
            fields.string("energy", limit=MAX_NAME_CHARS),
            figure.read(fields.take("watts")),
        )
        fields.done()
        known = found.conditions == (STREAM,) or tuple(c for c in ASKED if c in found.conditions) == found.conditions
        if not known or not found.conditions or (STREAM in found.conditions) == (found.window == 0):
            raise contradiction("a run has one stream, or some of the four conditions in their order")
        if found.energy not in ENERGY_SOURCES or (found.energy == "estimate") != (found.watts > 0):
            raise contradiction("only an estimate of energy has watts, and it has some")
        if (NEGATIVE in found.conditions) != (found.unrelated is not None):
            raise contradiction("a negative control, and nothing else, has unrelated tasks")
        return found

    def as_json(self) -> dict[str, object]:
        return {
            "model": self.model,
            "tasks": str(self.tasks),
            "unrelated": None if self.unrelated is None else str(self.unrelated),
            "conditions": list(self.conditions),
            "budget": self.budget,
            "seed": self.seed,
            "window": self.window,
            "repeats": self.repeats,
            "teach": self.teach,
            "recipe": dict(self.recipe),
            "energy": self.energy,
            "watts": figure.spell(self.watts),
        }


@dataclass(frozen=True, slots=True)
class Tried:
    """One attempt, or `tries` failed ones of a strategy together, their tokens added up.

    `answer` is one attempt's candidate, null where none was judged; `answers` are those of several, in order, and
    empty when the record had no room for them; `skipped` is the code of why nothing was tried.
    """

    strategy: str
    tries: int
    answer: str | None
    passed: bool
    decoded: int
    prefilled: int
    grafted: int
    skipped: str
    answers: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: object) -> Tried:
        fields = Fields(value, FAMILY)
        several = fields.optional(
            "answers", lambda name: fields.texts(name, limit=MAX_RECORDS, each=MAX_RECORD_BYTES)
        )
        found = cls(
            fields.string("strategy", limit=MAX_NAME_CHARS),
            fields.integer("tries", 1, MAX_SAFE_INTEGER),
            fields.optional("answer", lambda name: fields.text(name, limit=MAX_RECORD_BYTES)),
            fields.boolean("passed"),
            fields.integer("decoded", 0, MAX_SAFE_INTEGER),
            fields.integer("prefilled", 0, MAX_SAFE_INTEGER),
            fields.integer("grafted", 0, MAX_SAFE_INTEGER),
            fields.string("skipped", limit=MAX_NAME_CHARS),
            several or (),
        )
        fields.done()
        if (found.passed and (found.answer is None or found.skipped)) or (
            found.tries > 1 and found.answer is not None
        ):
            raise contradiction("an attempt that passed has one answer")
        if found.answers and (found.tries != len(found.answers) or found.tries == 1 or found.skipped):
            raise contradiction("several attempts have one answer each, and one attempt has no list of them")
        return found

    @property
    def candidates(self) -> tuple[str, ...]:
        """The texts that were judged, as far as they are kept."""
        return self.answers if self.answer is None else (self.answer,)

    def as_json(self) -> dict[str, object]:
        found: dict[str, object] = {
            "strategy": self.strategy,
            "tries": self.tries,
            "answer": self.answer,
            "passed": self.passed,
            "decoded": self.decoded,
            "prefilled": self.prefilled,
            "grafted": self.grafted,
            "skipped": self.skipped,
        }
        return {**found, "answers": list(self.answers)} if self.answers else found


@dataclass(frozen=True, slots=True)
class Asked:
    """One record. `answer_tokens` and `plain_tokens` are digests of what the last grafted attempt decoded and of what
    the same tokens gave as a plain prompt; null where that was not looked at."""

    index: int
    condition: str
    task: str
    problem: Digest
    split: str
    verifier: VerifierRecord
    attempts: tuple[Tried, ...]
    answer_tokens: Digest | None
    plain_tokens: Digest | None
    seconds: float
    cpu_seconds: float
    joules: float

    @classmethod
    def parse(cls, value: object) -> Asked:
        """Raises MalformedError `receipt.*`, `entry.*`; IntegrityError `receipt.score`."""
        fields = Fields(value, FAMILY)
        found = cls(
            fields.integer("index", 0, MAX_RECORDS),
            fields.string("condition", limit=MAX_NAME_CHARS),
            fields.string("task", limit=4 * MAX_NAME_CHARS),
            fields.digest("problem"),
            fields.string("split", limit=MAX_NAME_CHARS),
            VerifierRecord.parse(fields.take("verifier")),
            tuple(Tried.parse(each) for each in fields.array("attempts", limit=MAX_LIST_ENTRIES)),
            fields.optional("answer_tokens", fields.digest),
            fields.optional("plain_tokens", fields.digest),
            *(figure.read(fields.take(name)) for name in ("seconds", "cpu_seconds", "joules")),
        )
        fields.done()
        if found.split not in SPLITS_OF.get(found.condition, ()):
            raise contradiction(f"record {found.index} is of no condition that asks its problem")
        if (found.answer_tokens is None) != (found.plain_tokens is None):
            raise MalformedError("receipt.missing", "a graft is compared with a plain prompt, or it is not")
        return found

    def as_json(self) -> dict[str, object]:
        return {
            "index": self.index,
            "condition": self.condition,
            "task": self.task,
            "problem": str(self.problem),
            "split": self.split,
            "verifier": self.verifier.as_json(),
            "attempts": [each.as_json() for each in self.attempts],
            "answer_tokens": None if self.answer_tokens is None else str(self.answer_tokens),
            "plain_tokens": None if self.plain_tokens is None else str(self.plain_tokens),
            "seconds": figure.spell(self.seconds),
            "cpu_seconds": figure.spell(self.cpu_seconds),
            "joules": figure.spell(self.joules),
        }

    @property
    def passed(self) -> bool:
        return any(each.passed for each in self.attempts)

    @property
    def answered(self) -> str | None:
        """The strategy whose candidate passed."""
        return next((each.strategy for each in self.attempts if each.passed), None)

    @property
    def decoded(self) -> int:
        return sum(each.decoded for each in self.attempts)

    def check(self, trial: Trial, index: int) -> None:
        """Raises IntegrityError `receipt.score` unless this can be record `index` of the run."""
        if self.index != index or self.condition not in (*trial.conditions, FILL):
            raise contradiction(f"record {index} is none of its run")
        if self.decoded > trial.budget or min(self.seconds, self.cpu_seconds, self.joules) < 0:
            raise contradiction(f"record {index} cost more than the budget, or less than nothing")
        if trial.watts and self.joules != round(self.cpu_seconds * trial.watts, 6):
            raise contradiction(f"the energy of record {index} is not its CPU seconds times the watts")
