"""Family `handbook`: invented facts about invented places, a page for each, and one question on every fact.

Nothing of it was in anybody's training. The solution answers, then quotes the page, so that an entry answers what is
asked about the page's other facts; those are what held-out transfer asks. Only the first sentence of an answer is
judged: who quotes the page has not answered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.library.tasks.draws import Draws
from kvsync.library.tasks.task import Task, made
from kvsync.library.verifiers import VerifierSpec

NAME: Final = "handbook"
KINDS: Final = ("Hall", "Mill", "Lighthouse", "Depot", "Abbey", "Quarry", "Station", "Harbour")
COLOURS: Final = ("red", "blue", "green", "white", "black", "yellow", "orange", "purple")
DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
THINGS: Final = ("barrel", "bench", "lamp", "stone", "gate")
FACTS: Final = ("door code", "warden", "closing day", "flag colour", "radio call sign", "storage limit", "spare key")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the handbook: a place and its facts."""

    place: str
    facts: dict[str, str]

    @property
    def text(self) -> str:
        return f"Handbook of {self.place}. " + " ".join(self.sentence(what) for what in self.facts)

    def sentence(self, what: str) -> str:
        return f"The {what} of {self.place} is {self.facts[what]}."

    @property
    def source(self) -> str:
        """The name of the page's document."""
        return f"{self.place.lower().replace(' ', '-')}.txt"


def pages(seed: int, count: int) -> list[Page]:
    """The first `count` pages of a seed's handbook, each about another place."""
    names = Draws(seed, NAME, "places").names(count)
    return [_page(Draws(seed, NAME, "page", number), name) for number, name in enumerate(names)]


def _page(draws: Draws, name: str) -> Page:
    values = {
        "door code": str(draws.between(1000, 9999)),
        "warden": f"{draws.name()} {draws.name()}",
        "closing day": draws.choice(DAYS),
        "flag colour": draws.choice(COLOURS),
        "radio call sign": f"{draws.name()} {draws.between(2, 99)}",
        "storage limit": f"{draws.between(11, 990)} crates",
        "spare key": f"under the {draws.choice(COLOURS)} {draws.choice(THINGS)}",
    }
    order = draws.several(FACTS, len(FACTS))
    return Page(f"{name} {draws.choice(KINDS)}", {what: values[what] for what in order})


def tasks(seed: int, count: int) -> list[Task]:
    """`count` questions, one per fact, pages in turn."""
    known = pages(seed, _pages_for(count))

    def make(number: int) -> tuple[str, VerifierSpec, str, str]:
        page, what = known[number // len(FACTS) % len(known)], FACTS[number % len(FACTS)]
        value = page.facts[what]
        spec = VerifierSpec("normalised", None, {"answer": value, "take": "sentence", "within": True})
        question = f"What is the {what} of {page.place}?"
        return question, spec, f"{page.sentence(what)}\n{page.text}", page.source

    return made(NAME, seed, count, make)


def corpus(seed: int, count: int) -> dict[str, str]:
    """The pages that `tasks(seed, count)` asks about, by source."""
    asked = {task.source for task in tasks(seed, count)}
    return {page.source: f"{page.text}\n" for page in pages(seed, _pages_for(count)) if page.source in asked}


def _pages_for(count: int) -> int:
    """Every fact of every page is another problem, so no draw is left out."""
    return -(-count // len(FACTS))
