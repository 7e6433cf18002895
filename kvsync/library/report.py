"""What an answer cost, attempt by attempt; kinds of cost are never added up across each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvsync.library.verifiers import Verdict
from kvsync_protocol.digest import ArtifactId, Digest


@dataclass(frozen=True, slots=True)
class Cost:
    """Tokens the model decoded, computed as input, and had grafted in place of computing; wall-clock seconds."""

    decoded: int = 0
    prefilled: int = 0
    grafted: int = 0
    seconds: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.decoded + other.decoded,
            self.prefilled + other.prefilled,
            self.grafted + other.grafted,
            self.seconds + other.seconds,
        )

    def as_dict(self) -> dict[str, object]:
        return {
            "decoded": self.decoded,
            "prefilled": self.prefilled,
            "grafted": self.grafted,
            "seconds": round(self.seconds, 6),
        }


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one strategy. `entry` is the one it used; `passed_over` is why it did not try, "" where it did.

    `prompt` and `tokens` are digests (SPEC 3.1) of all input tokens, grafted ones included, and of the decoded ones,
    so that the same tokens as plain text can be checked against it. `graft` is the graft's mode.
    """

    strategy: str
    entry: Digest | None = None
    detail: str = ""
    answer: str = ""
    verdict: Verdict | None = None
    cost: Cost = field(default_factory=Cost)
    prompt: Digest | None = None
    tokens: Digest | None = None
    graft: str = ""
    passed_over: str = ""

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.passed

    def as_dict(self) -> dict[str, object]:
        return {
            "strategy": self.strategy,
            "entry": None if self.entry is None else str(self.entry),
            "detail": self.detail,
            "answer": self.answer,
            "verdict": None if self.verdict is None else self.verdict.as_dict(),
            "cost": self.cost.as_dict(),
            "prompt": None if self.prompt is None else str(self.prompt),
            "tokens": None if self.tokens is None else str(self.tokens),
            "graft": self.graft,
            "passed_over": self.passed_over,
        }


@dataclass(frozen=True, slots=True)
class Deposited:
    """What became of a newly verified solution: its entry and artifact, or the code of what was in the way."""

    entry: Digest | None = None
    artifact: ArtifactId | None = None
    refused: str = ""
    cost: Cost = field(default_factory=Cost)

    def as_dict(self) -> dict[str, object]:
        return {
            "entry": None if self.entry is None else str(self.entry),
            "artifact": None if self.artifact is None else str(self.artifact),
            "refused": self.refused,
            "cost": self.cost.as_dict(),
        }


@dataclass(frozen=True, slots=True)
class Solved:
    """The outcome; `answered` is the attempt that passed, None when none did within the budget."""

    problem: str
    address: Digest
    attempts: tuple[Attempt, ...]
    deposited: Deposited | None = None
    quarantined: tuple[Digest, ...] = ()

    @property
    def answered(self) -> Attempt | None:
        return next((attempt for attempt in self.attempts if attempt.passed), None)

    @property
    def answer(self) -> str | None:
        return None if self.answered is None else self.answered.answer

    @property
    def strategy(self) -> str | None:
        return None if self.answered is None else self.answered.strategy

    @property
    def verdict(self) -> Verdict | None:
        return None if self.answered is None else self.answered.verdict

    @property
    def costs(self) -> dict[str, Cost]:
        """By strategy, in the order they were tried; storing under "deposit"."""
        found: dict[str, Cost] = {}
        for attempt in self.attempts:
            found[attempt.strategy] = found.get(attempt.strategy, Cost()) + attempt.cost
        return found if self.deposited is None else {**found, "deposit": self.deposited.cost}

    @property
    def cost(self) -> Cost:
        """Of everything together."""
        return total(self.costs.values())

    def as_dict(self) -> dict[str, object]:
        return {
            "problem": self.problem,
            "address": str(self.address),
            "answer": self.answer,
            "strategy": self.strategy,
            "verdict": None if self.verdict is None else self.verdict.as_dict(),
            "cost": self.cost.as_dict(),
            "costs": {name: cost.as_dict() for name, cost in self.costs.items()},
            "attempts": [attempt.as_dict() for attempt in self.attempts],
            "deposited": None if self.deposited is None else self.deposited.as_dict(),
            "quarantined": [str(entry) for entry in self.quarantined],
        }


def total(costs: Iterable[Cost]) -> Cost:
    return sum(costs, Cost())
