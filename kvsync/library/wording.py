"""How problems and solutions become tokens: under the model's chat template, or in plain words without one.

    example    problem, solution                     the artifact of an entry
    ask        problem                               what an unaided attempt begins with
    follow     what comes behind an example          so that the example's tokens stay a prefix

Knows no library and no cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.engines.engine import Engine
from kvsync_protocol.digest import Digest

_PROBLEM: Final = "Problem: {}\nSolution:"
_SOLVED: Final = " {}\n\n"
_NEXT: Final = "\nProblem:"


@dataclass(frozen=True, slots=True)
class Wording:
    """One model's way of writing; `template` is the digest of its chat template, None for plain words."""

    engine: Engine

    @property
    def template(self) -> Digest | None:
        return self.engine.template

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which an answer ends, beside the model's own end tokens."""
        return () if self.template is not None else (_NEXT,)

    def example(self, problem: str, solution: str) -> list[int]:
        """A solved problem, ready for another one behind it."""
        text = self.engine.chat([problem, solution], reply=False)
        if text is not None:
            return self.engine.encode(text, continuation=True)
        return self.engine.encode(_PROBLEM.format(problem) + _SOLVED.format(solution))

    def ask(self, problem: str) -> list[int]:
        """A problem, up to where the model begins to answer."""
        text = self.engine.chat([problem], reply=True)
        if text is not None:
            return self.engine.encode(text, continuation=True)
        return self.engine.encode(_PROBLEM.format(problem))

    def follow(self, problem: str, solution: str, asked: str) -> list[int]:
        """What comes behind `example(problem, solution)` to ask another problem.

        A template that writes an earlier turn otherwise once more follow gets the new turn as if it were the first.
        """
        before = self.engine.chat([problem, solution], reply=False)
        if before is None:
            return self.engine.encode(_PROBLEM.format(asked), continuation=True)
        whole = self.engine.chat([problem, solution, asked], reply=True) or ""
        text = whole.removeprefix(before) if whole.startswith(before) else self.engine.chat([asked], reply=True)
        return self.engine.encode(text or "", continuation=True)
