"""Verifiers of texts and numbers: pure functions of the candidate, linear in its length."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvsync.library.extract import RULES, answer_number, numbers, take
from kvsync.library.problem import Problem
from kvsync.library.verifiers.parameters import Parameters
from kvsync.library.verifiers.spec_text import JsonValue
from kvsync.library.verifiers.verifier import Verdict

_EDGES = " \t\n.,;:!?\"'`*_()[]{}“”‘’"
_WORD_END = r"(?<!\w)", r"(?!\w)"


@dataclass(frozen=True, slots=True)
class TextVerifier:
    """Equal text, character by character: `answer`, `take` (a rule of `extract`, default `whole`)."""

    parameters: Mapping[str, JsonValue]
    answer: str
    rule: str
    name: str = "text"
    version: str = "1"
    deposits: bool = True

    @classmethod
    def read(cls, given: Parameters) -> TextVerifier:
        answer, rule = given.text("answer"), given.choice("take", list(RULES), "whole")
        return cls(given.done(), answer, rule)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        found = take(self.rule, candidate)
        if found is None:
            return Verdict.of(False, f"nothing to compare: no {self.rule}")
        return Verdict.of(found == self.answer, "equal" if found == self.answer else f"found {found[:80]!r}")


@dataclass(frozen=True, slots=True)
class NormalisedTextVerifier:
    """Equal but for case, compatibility forms, white space and punctuation at the ends.

    `answer`, or `answers` for several spellings; `take` (default `answer`); `within=true` when the answer may stand
    in the taken text as whole words.
    """

    parameters: Mapping[str, JsonValue]
    answers: tuple[str, ...]
    rule: str
    within: bool
    name: str = "normalised"
    version: str = "1"
    deposits: bool = True

    @classmethod
    def read(cls, given: Parameters) -> NormalisedTextVerifier:
        answer = given.text("answer", "")
        answers = tuple(fold(each) for each in (answer, *given.texts("answers", [])) if fold(each))
        rule, within = given.choice("take", list(RULES), "answer"), given.truth("within", False)
        if not answers:
            given.refuse("parameter answer is missing, or nothing but punctuation")
        return cls(given.done(), answers, rule, within)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        found = take(self.rule, candidate)
        if found is None:
            return Verdict.of(False, f"nothing to compare: no {self.rule}")
        folded = fold(found)
        passed = any(
            re.search(re.escape(each).join(_WORD_END), folded) is not None if self.within else each == folded
            for each in self.answers
        )
        return Verdict.of(passed, "equal" if passed else f"found {folded[:80]!r}")


def fold(text: str) -> str:
    """NFKC, case folded, white space as single spaces, without punctuation at the ends."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_EDGES)


@dataclass(frozen=True, slots=True)
class NumberVerifier:
    """The number that answers, at most `tolerance` (absolute) or `relative` times the answer away; exact fractions.

    `take`: `answer` (the rule of `extract.answer_number`), `first` or `last`.
    """

    parameters: Mapping[str, JsonValue]
    answer: Fraction
    allowed: Fraction
    rule: str
    name: str = "number"
    version: str = "1"
    deposits: bool = True

    @classmethod
    def read(cls, given: Parameters) -> NumberVerifier:
        text = given.text("answer")
        known = numbers(text)
        if len(known) != 1 or fold(text) == "":
            given.refuse(f"parameter answer is not one finite number: {text[:40]!r}")
        absolute, relative = given.tolerance("tolerance"), given.tolerance("relative")
        rule = given.choice("take", ("answer", "first", "last"), "answer")
        return cls(given.done(), known[0], max(absolute, relative * abs(known[0])), rule)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        found = self.pick(candidate)
        if found is None:
            return Verdict.of(False, "no finite number in the answer")
        passed = abs(found - self.answer) <= self.allowed
        return Verdict.of(passed, f"found {shown(found)}")

    def pick(self, candidate: str) -> Fraction | None:
        if self.rule == "answer":
            return answer_number(candidate)
        known = numbers(candidate)
        return (known[0] if self.rule == "first" else known[-1]) if known else None


def shown(value: Fraction) -> str:
    """A number for people, however large it is."""
    if value.denominator == 1 and abs(value) < 10**15:
        return str(value.numerator)
    try:
        return f"{float(value):.12g}"
    except OverflowError:
        return "a number beyond 1e308"
