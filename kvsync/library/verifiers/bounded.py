"""Verifiers that could run for ever on some text, and so are judged in a process that can be killed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvsync.errors import UsageError
from kvsync.library.extract import RULES, take
from kvsync.library.problem import Problem
from kvsync.library.verifiers.parameters import Parameters
from kvsync.library.verifiers.spec_text import JsonValue, strict
from kvsync.library.verifiers.verifier import Verdict
from kvsync.library.verifiers.worker import Died, TimedOut, bounded_verdict, worker
from kvsync_protocol.limits import GiB

PLUG_IN_WALL_S: Final = 30
PLUG_IN_MEMORY: Final = 8 * GiB
_WALL = ("wall_s", 1, 600)


@dataclass(frozen=True, slots=True)
class BoundedVerifier:
    """One built-in judge, its question but for the text, and where in the candidate that text stands."""

    name: str
    parameters: Mapping[str, JsonValue]
    question: Mapping[str, object]
    rule: str
    wall_s: int
    version: str = "1"
    deposits: bool = True

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        text = take(self.rule, candidate)
        if text is None:
            return Verdict.of(False, f"nothing to judge: no {self.rule}")
        return bounded_verdict(worker(self.name), {**self.question, "text": text}, self.wall_s)

    def checked(self) -> BoundedVerifier:
        """This verifier, once its judge has accepted the parameters. Raises what `Worker.ask` does."""
        try:
            worker(self.name).ask({**self.question, "text": None}, self.wall_s)
        except (TimedOut, Died) as error:
            raise UsageError("verifier.parameter", f"{self.name}: the parameters take too long to read") from error
        return self


def read_regex(given: Parameters) -> BoundedVerifier:
    """`pattern` (Python's), `match` (`search` or `fullmatch`), `ignore_case`, `take` (`whole`), `wall_s` (2)."""
    pattern = given.text("pattern")
    match = given.choice("match", ("search", "fullmatch"), "search")
    ignore_case, rule = given.truth("ignore_case", False), given.choice("take", list(RULES), "whole")
    wall_s = given.integer(*_WALL, 2)
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        given.refuse(f"not a regular expression: {error}")
    question = {"pattern": pattern, "match": match, "ignore_case": ignore_case}
    return BoundedVerifier("regex", given.done(), question, rule, wall_s)


def read_schema(given: Parameters) -> BoundedVerifier:
    """`schema` (a JSON schema; figures with a point are not strict JSON, so give it as text then), `wall_s` (5)."""
    schema = given.json("schema")
    if not isinstance(schema, str | dict | bool):
        given.refuse("parameter schema is neither a schema nor its text")
    wall_s = given.integer(*_WALL, 5)
    return BoundedVerifier("schema", given.done(), {"schema": schema}, "json", wall_s).checked()


def read_math(given: Parameters) -> BoundedVerifier:
    """`answer` (LaTeX or plain), `wall_s` (10). math-verify finds the expression in the candidate by itself."""
    answer = given.text("answer")
    wall_s = given.integer(*_WALL, 10)
    return BoundedVerifier("math", given.done(), {"answer": answer}, "whole", wall_s).checked()


@dataclass(frozen=True, slots=True)
class PlugInVerifier:
    """A verifier from entry point group `kvsync.verifiers`, made and asked in the process that can be killed."""

    name: str
    version: str
    parameters: Mapping[str, JsonValue]
    deposits: bool

    @classmethod
    def load(cls, name: str, parameters: Mapping[str, JsonValue]) -> PlugInVerifier:
        """Ask the plug-in what it is.

        Raises:
            UsageError: `verifier.plug_in`, or what the plug-in says of its parameters.
        """
        question = {"do": "describe", "name": name, "parameters": dict(parameters)}
        try:
            said = worker("plug-in", memory=PLUG_IN_MEMORY).ask(question, PLUG_IN_WALL_S)
        except (TimedOut, Died) as error:
            raise UsageError("verifier.plug_in", f"plug-in {name} does not say what it is") from error
        version, deposits, read = said.get("version"), said.get("deposits"), said.get("parameters")
        if said.get("name") != name or not isinstance(version, str) or not isinstance(deposits, bool):
            raise UsageError("verifier.plug_in", f"plug-in {name} has no proper name, version or deposits")
        checked = strict(read)
        if not isinstance(checked, dict):
            raise UsageError("verifier.plug_in", f"the parameters of plug-in {name} are no table")
        return cls(name, version, checked, deposits)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        question = {
            "do": "verify",
            "name": self.name,
            "parameters": dict(self.parameters),
            "problem": problem.text,
            "candidate": candidate,
        }
        return bounded_verdict(worker("plug-in", memory=PLUG_IN_MEMORY), question, PLUG_IN_WALL_S)
