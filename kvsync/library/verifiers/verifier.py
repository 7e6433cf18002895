"""What a verifier is: a name, a version, parameters that say all it needs to judge again, and a verdict.

The parameters hold the truth (the answer, the tests, the schema), so that an entry that names a verifier can be
judged anew on another host. Knows no single verifier and no model; `registry` turns a spec into a verifier.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from kvsync.errors import UsageError
from kvsync.library.problem import Problem
from kvsync.library.verifiers.spec_text import JsonValue, read_table, read_text
from kvsync_protocol import figure

MAX_DETAIL_CHARS = 500
_UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\s]+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier found: whether the candidate passed, how far it got, and why, in one line.

    `score` is in 0..1, such as the share of tests that held; only `passed` decides.
    """

    passed: bool
    score: float
    detail: str

    def __post_init__(self) -> None:
        """Raises UsageError `verifier.verdict` for a plug-in's verdict that is none."""
        if type(self.passed) is not bool or not isinstance(self.score, int | float) or isinstance(self.score, bool):
            raise UsageError("verifier.verdict", "a verdict is a truth value, a score and a text")
        if not (math.isfinite(self.score) and 0 <= self.score <= 1):
            raise UsageError("verifier.verdict", f"a score lies between 0 and 1, not at {self.score}")
        shown = _UNSHOWN.sub(" ", str(self.detail)).strip()
        object.__setattr__(self, "score", float(self.score))
        object.__setattr__(
            self, "detail", shown if len(shown) <= MAX_DETAIL_CHARS else f"{shown[: MAX_DETAIL_CHARS - 1]}…"
        )

    @classmethod
    def of(cls, passed: bool, detail: str) -> Verdict:
        """A verdict without half measures."""
        return cls(passed, 1.0 if passed else 0.0, detail)

    def as_dict(self) -> dict[str, object]:
        """Strict JSON: the score as the one spelling of its figure."""
        return {"passed": self.passed, "score": figure.spell(self.score), "detail": self.detail}

    @classmethod
    def from_dict(cls, source: Mapping[str, object]) -> Verdict:
        """`Verdict.from_dict(v.as_dict()) == v`.

        Raises:
            UsageError: `verifier.verdict`.
            MalformedError: `receipt.figure`.
        """
        passed, detail = source.get("passed"), source.get("detail")
        if set(source) != {"passed", "score", "detail"} or type(passed) is not bool or not isinstance(detail, str):
            raise UsageError("verifier.verdict", "a verdict has the members passed, score and detail")
        return cls(passed, figure.read(source["score"]), detail)


class Verifier(Protocol):
    """Judges candidates. Two verifiers with the same name, version and parameters give the same verdicts."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Changes whenever the same parameters may judge otherwise."""

    @property
    def parameters(self) -> Mapping[str, JsonValue]:
        """All it needs to judge, defaults included; `load_verifier` makes the same verifier of them."""

    @property
    def deposits(self) -> bool:
        """Whether what passes may become an entry of a library."""

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        """Judge `candidate`, the model's whole answer.

        A candidate that hangs, crashes or breaks a limit is a verdict that did not pass. Raises CodedError only for
        what is no fault of the candidate: an extra that is not installed, isolation this host cannot give.
        """


@dataclass(frozen=True, slots=True)
class VerifierSpec:
    """Which verifier, in which version (None: whichever is installed), with which parameters.

    `VerifierSpec.parse(s.as_dict()) == s`. Written by hand it is `NAME` or `NAME:key=value,key=value`; a value that
    begins with `"`, `[` or `{` is JSON, any other is text up to the next comma; keys are letters, digits and `_`.
    """

    name: str
    version: str | None
    parameters: Mapping[str, JsonValue]

    @classmethod
    def of(cls, verifier: Verifier) -> VerifierSpec:
        return cls(verifier.name, verifier.version, dict(verifier.parameters))

    @classmethod
    def parse(cls, source: str | Mapping[str, object] | VerifierSpec) -> VerifierSpec:
        """Read a text, or a table with `name` and perhaps `version` and `parameters`.

        Raises:
            UsageError: `verifier.syntax`.
        """
        if isinstance(source, VerifierSpec):
            return source
        return cls(*(read_text(source) if isinstance(source, str) else read_table(source)))

    def adding(self, **parameters: JsonValue) -> VerifierSpec:
        """The same spec with more parameters, such as a task's answer; those given here win."""
        return VerifierSpec(self.name, self.version, {**self.parameters, **parameters})

    def as_dict(self) -> dict[str, object]:
        found: dict[str, object] = {"name": self.name, "parameters": dict(self.parameters)}
        return found if self.version is None else {**found, "version": self.version}
