"""Family `labels`: what invented offices write on a label for a thing. A short answer, of which most can be copied.

Each office has a word and a number of its own, which are stated nowhere but in worked examples: nobody writes an
office's first label unaided, and one example shows all that its other labels need but the thing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.library.tasks.draws import Draws
from kvsync.library.tasks.task import Task, made
from kvsync.library.verifiers import VerifierSpec

NAME: Final = "labels"
OFFICES: Final = 24
COLOURS: Final = ("red", "blue", "green", "white", "black", "yellow", "pink", "purple", "brown", "grey")
THINGS: Final = (
    "lamp", "rope", "anvil", "kettle", "barrel", "saddle", "ladder", "mirror", "clock", "basket", "hammer", "bench",
)  # fmt: skip
MARKS: Final = (
    "copper", "river", "candle", "winter", "garden", "silver", "thunder", "pepper", "marble", "forest", "ribbon",
    "ocean",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Office:
    """An office, and what it writes behind every thing."""

    name: str
    mark: str

    def problem(self, thing: str) -> str:
        return f"Write the {self.name} label for a {thing}."

    def answer(self, thing: str) -> str:
        return f"{self.name} label: {thing}, {self.mark}"


def offices(seed: int) -> list[Office]:
    """A seed's offices."""
    draws = Draws(seed, NAME, "offices")
    return [Office(name, f"{draws.choice(MARKS)} {draws.between(11, 99)}") for name in draws.names(OFFICES)]


def tasks(seed: int, count: int) -> list[Task]:
    """`count` labels, offices in turn."""
    known = offices(seed)

    def make(number: int) -> tuple[str, VerifierSpec, str, str]:
        office, draws = known[number % len(known)], Draws(seed, NAME, "label", number)
        thing = f"{draws.choice(COLOURS)} {draws.choice(THINGS)}"
        answer = office.answer(thing)
        return office.problem(thing), VerifierSpec("normalised", None, {"answer": answer, "take": "line"}), answer, ""

    return made(NAME, seed, count, make)
