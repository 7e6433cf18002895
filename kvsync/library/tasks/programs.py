"""Family `programs`: small Python functions with an invented name and constants, checked by tests.

A problem says all that is asked. Within a pattern, problems differ in name and constants only, so that a verified
program of the pattern shows how another is written. The expected values of the tests come from running the solution.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from kvsync.library.tasks.draws import Draws
from kvsync.library.tasks.task import Task, made
from kvsync.library.verifiers import VerifierSpec

NAME: Final = "programs"

PATTERNS: Final[tuple[tuple[str, str, str], ...]] = (
    # what is asked, the parameter, the body; {a} and {b} are the constants
    ("adds {a} to every number of a list and keeps only results that {b} divides", "numbers",
     "return [n + {a} for n in numbers if (n + {a}) % {b} == 0]"),
    ("returns the sum of the numbers of a list above {a}, times {b}", "numbers",
     "return {b} * sum(n for n in numbers if n > {a})"),
    ("returns a list backwards, with {a} before its first and {b} behind its last number", "numbers",
     "return [{a}] + numbers[::-1] + [{b}]"),
    ("counts the numbers of a list from {a} to {a} plus {b}", "numbers",
     "return sum(1 for n in numbers if {a} <= n <= {a} + {b})"),
    ("multiplies numbers of a list below {a} by {b} and leaves the others", "numbers",
     "return [n * {b} if n < {a} else n for n in numbers]"),
    ("returns the largest number of a list minus {a}, or {b} for an empty list", "numbers",
     "return max(numbers) - {a} if numbers else {b}"),
    ("counts the words of a text longer than {b} letters and adds {a}", "text",
     "return sum(1 for word in text.split() if len(word) > {b}) + {a}"),
    ("repeats every letter of a text {b} times and appends the number {a}", "text",
     "return ''.join(letter * {b} for letter in text) + str({a})"),
)  # fmt: skip
LISTS: Final[tuple[list[int], ...]] = (
    [],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10],
    [12, 5, 30, 7, 18],
    [40, 3, 21, 16, 9, 25],
)
TEXTS: Final = ("", "a small red lamp", "counting words is extraordinarily simple", "xyz")


def tasks(seed: int, count: int) -> list[Task]:
    """`count` problems, patterns in turn."""

    def make(number: int) -> tuple[str, VerifierSpec, str, str]:
        asked, parameter, body = PATTERNS[number % len(PATTERNS)]
        draws = Draws(seed, NAME, "case", number)
        name, a, b = draws.name().lower(), draws.between(3, 29), draws.between(2, 7)
        what, code = asked.format(a=a, b=b), f"def {name}({parameter}):\n    {body.format(a=a, b=b)}\n"
        problem = f"Write a Python function {name}({parameter}) that {what}."
        spec = VerifierSpec("python", None, {"tests": _tests(name, code, LISTS if parameter == "numbers" else TEXTS)})
        return problem, spec, f"```python\n{code}```", ""

    return made(NAME, seed, count, make)


def _tests(name: str, code: str, inputs: tuple[Any, ...]) -> str:
    names: dict[str, Callable[[Any], object]] = {}
    exec(code, names)  # noqa: S102 (written above)
    return "\n".join(f"assert {name}({value!r}) == {names[name](value)!r}" for value in inputs)
