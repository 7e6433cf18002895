"""Verifiers that run a program: the candidate's own, under tests, or any command that judges it.

Everything runs in the sandbox. What the program does to itself is a verdict; an isolation that this host cannot give
is an error, and only the caller of `load_verifier` may do without one: a spec, which may be a peer's, cannot.
"""

from __future__ import annotations

import ast
import json
import secrets
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from kvsync.library.extract import code, take
from kvsync.library.problem import Problem
from kvsync.library.sandbox import Ended, Limits, run_program
from kvsync.library.verifiers.parameters import Parameters
from kvsync.library.verifiers.spec_text import JsonValue
from kvsync.library.verifiers.verifier import Verdict
from kvsync_protocol.limits import MiB

RUNNER = '''\
"""Run the tests on the solution; say how many asserts held. The nonce comes last, so an early exit proves nothing."""
import ast, json, sys

nonce = sys.stdin.readline().strip()
names = {"__name__": "solution"}
exec(compile(open("solution.py").read(), "solution.py", "exec"), names)
tests = ast.parse(open("tests.py").read(), "tests.py")
held = total = 0
first = ""
for statement in tests.body:
    run = compile(ast.Module([statement], []), "tests.py", "exec")
    if not isinstance(statement, ast.Assert):
        exec(run, names)
        continue
    total += 1
    try:
        exec(run, names)
        held += 1
    except Exception as error:
        first = first or f"{ast.unparse(statement)[:120]}: {type(error).__name__} {error}"[:200]
sys.stdout.flush()
print("\\n" + nonce + json.dumps([held, total, first]), flush=True)
'''


def read_limits(given: Parameters, *, wall_s: int) -> Limits:
    """`wall_s`, `cpu_s`, `memory_mib`, `processes`, `file_mib`, `folder_mib`."""
    wall = given.integer("wall_s", 1, 3600, wall_s)
    return Limits(
        wall_s=wall,
        cpu_s=given.integer("cpu_s", 1, 3600, wall),
        memory=given.integer("memory_mib", 16, 64 * 1024, 1024) * MiB,
        processes=given.integer("processes", 1, 1024, 16),
        file=given.integer("file_mib", 1, 4096, 16) * MiB,
        folder=given.integer("folder_mib", 1, 4096, 64) * MiB,
    )


def why(ended: Ended, limits: Limits) -> str:
    """How a program failed, in one line."""
    if ended.broke:
        shown = {"wall_s": f"{limits.wall_s} s of time", "cpu_s": f"{limits.cpu_s} s of processor time"}
        return f"broke its limit of {shown.get(ended.broke, f'{limits.output} bytes of output')}"
    said = next((line for line in reversed(ended.stderr.decode(errors="replace").splitlines()) if line.strip()), "")
    how = (
        f"signal {-ended.status}" if ended.status is not None and ended.status < 0 else f"exit status {ended.status}"
    )
    return f"{how}: {said}" if said else how


@dataclass(frozen=True, slots=True)
class PythonVerifier:
    """The candidate's Python (rule `code`) passes `tests`: every top-level `assert` of them holds.

    The tests share the process with the solution, so they measure honest attempts; a solution that is written to
    deceive its tests needs `command`, whose program is another.
    """

    parameters: Mapping[str, JsonValue]
    tests: str
    limits: Limits
    without: frozenset[str]
    name: str = "python"
    version: str = "1"
    deposits: bool = True

    @classmethod
    def read(cls, given: Parameters, without: frozenset[str]) -> PythonVerifier:
        tests = given.text("tests")
        limits = read_limits(given, wall_s=10)
        try:
            found = [each for each in ast.parse(tests).body if isinstance(each, ast.Assert)]
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            given.refuse(f"the tests are not Python: {error}")
        if not found:
            given.refuse("the tests assert nothing")
        return cls(given.done(), tests, limits, without)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        solution = code(candidate).encode(errors="replace").decode()
        nonce = secrets.token_hex(16)
        ended = run_program(
            [sys.executable, "-I", "-B", "run.py"],
            files={"run.py": RUNNER, "solution.py": solution, "tests.py": self.tests},
            stdin=f"{nonce}\n",
            limits=self.limits,
            without=self.without,
        )
        if not ended.well:
            return Verdict.of(False, why(ended, self.limits))
        report = ended.stdout.decode(errors="replace").rstrip("\n").rpartition("\n")[2]
        try:
            held, total, first = json.loads(report.removeprefix(nonce)) if report.startswith(nonce) else (0, 0, "")
            score = int(held) / int(total)
        except (ValueError, TypeError, ZeroDivisionError):
            return Verdict.of(False, "the solution ended the program before its tests")
        return Verdict(held == total, score, f"{held} of {total} asserts hold" + (f"; {first}" if first else ""))


@dataclass(frozen=True, slots=True)
class CommandVerifier:
    """`argv` (a list) judges: exit status 0 passes.

    It finds `candidate.txt`, `problem.txt` and the `files` of the spec in its folder and the candidate on stdin. The
    program must be in the system's folders or among the files (`["sh", "check.sh"]`); `take` is a rule of `extract`.
    """

    parameters: Mapping[str, JsonValue]
    argv: tuple[str, ...]
    files: Mapping[str, str]
    rule: str
    limits: Limits
    without: frozenset[str]
    name: str = "command"
    version: str = "1"
    deposits: bool = True

    @classmethod
    def read(cls, given: Parameters, without: frozenset[str]) -> CommandVerifier:
        argv, files = given.texts("argv"), given.files("files")
        rule = given.choice("take", ("whole", "code", "json", "answer", "boxed"), "whole")
        limits = read_limits(given, wall_s=30)
        if not argv or not all(argv) or any("\0" in each for each in argv):
            given.refuse("parameter argv names no program")
        return cls(given.done(), tuple(argv), files, rule, limits, without)

    def verify(self, problem: Problem, candidate: str) -> Verdict:
        text = take(self.rule, candidate)
        if text is None:
            return Verdict.of(False, f"nothing to judge: no {self.rule}")
        text = text.encode(errors="replace").decode()
        ended = run_program(
            self.argv,
            files={**self.files, "candidate.txt": text, "problem.txt": problem.text},
            stdin=text,
            limits=self.limits,
            without=self.without,
        )
        return Verdict.of(ended.well, "exit status 0" if ended.well else why(ended, self.limits))
