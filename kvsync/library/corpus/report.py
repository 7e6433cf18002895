"""What an ingest did, and what a question was answered with."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsync.library.corpus.folder import PassedOver
from kvsync.library.report import Cost
from kvsync_protocol.digest import Digest
from kvsync_protocol.passage import Passage


@dataclass(frozen=True, slots=True)
class Ingested:
    """Documents by what became of them, passages and tokens by whether they were computed.

    `gone` are sources of this library that the folder no longer has as documents: still there, unless `pruned`.
    """

    library: str
    new: int
    changed: int
    unchanged: int
    passed_over: tuple[PassedOver, ...]
    gone: tuple[str, ...]
    pruned: bool
    passages: int
    computed: int
    removed: int
    tokens: int
    tokens_computed: int
    seconds: float

    @property
    def documents(self) -> int:
        return self.new + self.changed + self.unchanged

    @property
    def tokens_per_s(self) -> float:
        return self.tokens_computed / self.seconds if self.seconds > 0 else 0.0

    def as_dict(self) -> dict[str, object]:
        return {
            "library": self.library,
            "documents": {
                "all": self.documents,
                "new": self.new,
                "changed": self.changed,
                "unchanged": self.unchanged,
            },
            "passed_over": [{"source": each.source, "reason": each.reason} for each in self.passed_over],
            "gone": list(self.gone),
            "pruned": self.pruned,
            "passages": {"all": self.passages, "computed": self.computed, "removed": self.removed},
            "tokens": self.tokens,
            "tokens_computed": self.tokens_computed,
            "seconds": round(self.seconds, 3),
            "tokens_per_s": round(self.tokens_per_s, 1),
        }


@dataclass(frozen=True, slots=True)
class Candidate:
    """A passage that a question was routed to. `score` is BM25, larger for more and rarer words of the question.

    `passed_over` is the code of why its artifact could not answer, "" where it did or was not needed.
    """

    digest: Digest
    passage: Passage
    score: float
    passed_over: str = ""

    @property
    def citation(self) -> str:
        """Where it stands, for people."""
        said = self.passage
        parts = [said.source, *([said.section] if said.section else []), f"characters {said.start}-{said.stop}"]
        return f"{', '.join(parts)}, artifact {said.artifact.short}, score {self.score:.2f}"

    def as_dict(self) -> dict[str, object]:
        said = self.passage
        return {
            "passage": str(self.digest),
            "document": said.source,
            "section": said.section,
            "start": said.start,
            "stop": said.stop,
            "artifact": str(said.artifact),
            "tokens": said.tokens,
            "score": round(self.score, 4),
            "passed_over": self.passed_over,
        }


@dataclass(frozen=True, slots=True)
class Asked:
    """`cited` is the passage that was grafted and `answer` what the model said behind it; None when none could be.

    `candidates` are those that were looked at, the best first. `seconds` is by stage: route, verify, restore,
    prefill, decode. `prompt` and `output` are digests (SPEC 3.1) of all input tokens, the passage's included, and
    of those decoded.
    """

    question: str
    candidates: tuple[Candidate, ...]
    cited: Candidate | None = None
    answer: str | None = None
    cost: Cost = field(default_factory=Cost)
    seconds: dict[str, float] = field(default_factory=dict)
    prompt: Digest | None = None
    output: Digest | None = None

    @property
    def access_s(self) -> float:
        """From the question to a live cache that holds the passage."""
        return sum(self.seconds.get(stage, 0.0) for stage in ("route", "verify", "restore"))

    def as_dict(self) -> dict[str, object]:
        return {
            "question": self.question,
            "answer": self.answer,
            "cited": None if self.cited is None else self.cited.as_dict(),
            "candidates": [each.as_dict() for each in self.candidates],
            "cost": self.cost.as_dict(),
            "seconds": {stage: round(value, 6) for stage, value in self.seconds.items()},
            "prompt": None if self.prompt is None else str(self.prompt),
            "output": None if self.output is None else str(self.output),
        }
