"""Family `procedures`: invented office procedures in several steps, each with many cases that differ in values.

The rules of a procedure (its code, the order of the fields, the sign between them) are stated nowhere but in worked
examples: nobody solves a first case unaided, and one worked case shows all that another needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.library.tasks.draws import Draws
from kvsync.library.tasks.task import Task, made
from kvsync.library.verifiers import VerifierSpec

NAME: Final = "procedures"
PROCEDURES: Final = 24
ASKED: Final = 2
"""Fields of a procedure: each more makes the worked example longer, and harder to follow for a small model."""
FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "item": ("lamp", "rope", "anvil", "kettle", "barrel", "saddle", "ladder", "mirror", "clock", "basket", "hammer"),
    "colour": ("red", "blue", "green", "white", "black", "yellow", "orange", "purple", "brown", "grey"),
    "town": ("Paris", "Rome", "Oslo", "Cairo", "Lima", "Delhi", "Tokyo", "Madrid", "Berlin", "Boston", "Dublin"),
    "client": ("Anna", "Peter", "Maria", "James", "Laura", "David", "Sarah", "Thomas", "Emma", "Paul", "Alice"),
    "month": ("January", "March", "April", "May", "June", "July", "August", "October", "November"),
    "animal": ("horse", "goat", "raven", "salmon", "tiger", "otter", "camel", "badger", "falcon", "rabbit"),
}
FORMS: Final = ("slip", "label", "docket", "ticket", "seal", "permit")
SIGNS: Final = ("-", "/", "+", ":", "=", "*")


@dataclass(frozen=True, slots=True)
class Procedure:
    """One procedure: which fields it asks for, and in which order it writes them behind its code."""

    name: str
    code: str
    sign: str
    asked: tuple[str, ...]
    written: tuple[str, ...]

    def problem(self, values: dict[str, str]) -> str:
        listed = ", ".join(f"{field} {values[field]}" for field in self.asked)
        return f"Write the {self.name} for {listed}."

    def answer(self, values: dict[str, str], steps: int | None = None) -> str:
        """The result after so many fields; of all of them by default."""
        return self.sign.join([self.code, *(values[field] for field in self.written[:steps])])

    def solution(self, values: dict[str, str]) -> str:
        """Every step, and the result."""
        steps = [f"Step 1: begin with the code {self.code}."]
        for number, field in enumerate(self.written, 1):
            steps.append(f"Step {number + 1}: add the {field} {values[field]}: {self.answer(values, number)}")
        return "\n".join([*steps, f"Answer: {self.answer(values)}"])


def procedures(seed: int) -> list[Procedure]:
    """A seed's procedures."""
    names = Draws(seed, NAME, "names").names(PROCEDURES)
    return [_procedure(Draws(seed, NAME, "procedure", number), name) for number, name in enumerate(names)]


def _procedure(draws: Draws, name: str) -> Procedure:
    asked = draws.several(tuple(FIELDS), ASKED)
    written = draws.several(asked, ASKED)
    code = "".join(draws.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(2)) + str(draws.between(2, 9))
    return Procedure(f"{name} {draws.choice(FORMS)}", code, draws.choice(SIGNS), tuple(asked), tuple(written))


def tasks(seed: int, count: int) -> list[Task]:
    """`count` cases, procedures in turn."""
    known = procedures(seed)

    def make(number: int) -> tuple[str, VerifierSpec, str, str]:
        procedure, draws = known[number % len(known)], Draws(seed, NAME, "case", number)
        values = {field: draws.choice(FIELDS[field]) for field in procedure.asked}
        spec = VerifierSpec("normalised", None, {"answer": procedure.answer(values), "take": "answer"})
        return procedure.problem(values), spec, procedure.solution(values), ""

    return made(NAME, seed, count, make)
