"""The child process of `worker`: questions in, verdicts out, one JSON object a line.

    python -m kvsync.library.verifiers.judge KIND MEMORY

A judge is a function of one question. What it prints goes nowhere; what it raises becomes a reply.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any, Final, cast

from kvsync.errors import UsageError
from kvsync.library.problem import Problem
from kvsync.library.verifiers.verifier import Verdict, Verifier
from kvsync_protocol.errors import CodedError

GROUP: Final = "kvsync.verifiers"
SPARE_S: Final = 5
Question = dict[str, Any]


def regex(question: Question) -> dict[str, object]:
    flags = re.IGNORECASE if question["ignore_case"] else 0
    try:
        pattern = re.compile(question["pattern"], flags)
    except (re.error, RecursionError, OverflowError) as error:
        raise UsageError("verifier.parameter", f"regex: not a regular expression: {error}") from error
    found = getattr(pattern, question["match"])(question["text"])
    return Verdict.of(found is not None, "matches" if found else "does not match").as_dict()


def schema(question: Question) -> dict[str, object]:
    jsonschema = _extra("jsonschema")
    referencing = _extra("referencing")
    text, rules = question["text"], question["schema"]
    try:
        rules = json.loads(rules) if isinstance(rules, str) else rules
        kind = jsonschema.validators.validator_for(rules, default=jsonschema.Draft202012Validator)
        kind.check_schema(rules)
    except ValueError as error:
        raise UsageError("verifier.parameter", f"schema: not JSON: {error}") from error
    except jsonschema.SchemaError as error:
        raise UsageError("verifier.parameter", f"schema: not a JSON schema: {error.message}") from error
    if text is None:
        return Verdict.of(True, "a schema").as_dict()
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return Verdict.of(False, f"not JSON: {error}").as_dict()
    # An empty registry: a reference to another place is never fetched.
    validator = kind(rules, registry=referencing.Registry())
    try:
        worst = jsonschema.exceptions.best_match(validator.iter_errors(value))
    except referencing.exceptions.Unresolvable as unresolved:
        raise UsageError("verifier.parameter", f"schema: a reference leads nowhere: {unresolved}") from unresolved
    return Verdict.of(worst is None, "fits" if worst is None else f"{worst.json_path}: {worst.message}").as_dict()


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def mathematics(question: Question) -> dict[str, object]:
    math_verify = _extra("math_verify")
    # Its own time limits use signals and would end the wrong thing; the worker's limit holds.
    gold = math_verify.parse(f"\\boxed{{{question['answer']}}}", parsing_timeout=None)
    if not gold:
        raise UsageError("verifier.parameter", "math: the answer is no mathematical expression")
    if question["text"] is None:
        return Verdict.of(True, "an expression").as_dict()
    found = math_verify.parse(question["text"], parsing_timeout=None)
    if not found:
        return Verdict.of(False, "no mathematical expression in the answer").as_dict()
    passed = math_verify.verify(gold, found, timeout_seconds=None)
    return Verdict.of(bool(passed), "equivalent" if passed else f"found {found[-1]}").as_dict()


def _extra(module: str) -> Any:
    import importlib

    try:
        found = importlib.import_module(module)
        if module == "jsonschema":
            importlib.import_module("jsonschema.validators")
        return found
    except ImportError as error:
        raise UsageError(
            "verifier.extra", f"{module} is not installed here", hint="pip install 'kvsync[library]'"
        ) from error


def plug_in(question: Question) -> dict[str, object]:
    """`describe` or `verify` with the plug-in `name`, made of `parameters` anew each time."""
    [entry, *_] = metadata.entry_points(group=GROUP, name=question["name"]) or [None]
    if entry is None:
        raise UsageError("verifier.unknown", f"there is no plug-in {question['name']!r}")
    try:
        made = cast(Verifier, entry.load()(question["parameters"]))
        if question["do"] == "describe":
            return {
                "name": made.name,
                "version": made.version,
                "parameters": dict(made.parameters),
                "deposits": made.deposits,
            }
        return made.verify(Problem.of(question["problem"]), question["candidate"]).as_dict()
    except CodedError:
        raise
    except Exception as error:
        raise UsageError(
            "verifier.plug_in", f"plug-in {question['name']}: {type(error).__name__}: {error}"
        ) from error


JUDGES: Final[dict[str, Callable[[Question], dict[str, object]]]] = {
    "regex": regex,
    "schema": schema,
    "math": mathematics,
    "plug-in": plug_in,
}


def main() -> None:
    judge, memory = JUDGES[sys.argv[1]], int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    replies = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)
    questions = os.fdopen(os.dup(0), "rb")
    os.dup2(nowhere, 0)
    replies.write(b"{}\n")
    replies.flush()
    for line in questions:
        question = json.loads(line)
        # Whoever asked kills this process when the time is over, unless it is gone itself: then this does.
        signal.alarm(int(question["wall_s"]) + SPARE_S)
        try:
            reply = judge(question)
        except CodedError as error:
            reply = {"error": error.as_dict()}
        except Exception as error:  # noqa: BLE001 (libraries raise anything on a text that nobody foresaw)
            reply = Verdict.of(False, f"the judge failed: {type(error).__name__}: {error}").as_dict()
        signal.alarm(0)
        replies.write(json.dumps(reply).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
