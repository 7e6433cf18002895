"""Built-in verifiers: what passes, what does not, and what is refused."""

from __future__ import annotations

import errno
import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import NotFoundError, UsageError
from kvsync.library.problem import Problem
from kvsync.library.verifiers import VerifierSpec, load_verifier, verifier_names
from kvsync_protocol.errors import CodedError, VersionError

PROBLEM = Problem.of("what is it?")
SQUARE = {"name": "python", "parameters": {"tests": "n = 3\nassert f(2) == 4\nassert f(n) == 9"}}


def table(kind: str, **parameters: object) -> dict[str, object]:
    return {"name": kind, "parameters": parameters}


CASES = [
    ("text:answer=4", "4", True),
    ("text:answer=4", "4 ", False),
    ("text:answer=4,take=last_line", "so\n 4 ", True),
    ("normalised:answer=Deep Blue", "I think.\nThe answer is: **deep  blue**.", True),
    ("normalised:answer=blue", "The answer is deep blue", False),
    ("normalised:answer=blue,within=true,take=line", "It is a blue one.\nRed.", True),
    ("normalised:answer=blue,within=true", "the answer is bluebell", False),
    ('normalised:answers=["one","1"]', "Answer: 1.", True),
    ("normalised:answer=x", "", False),
    ("number:answer=42", "The answer is 42.", True),
    ("number:answer=42", "42 or maybe 43", False),
    ("number:answer=42,take=first", "42 or maybe 43", True),
    ("number:answer=1234.5", "it costs $1,234.50", True),
    ("number:answer=0.3333,tolerance=0.0001", "1/3", True),
    ("number:answer=-7", "x = −7", True),
    ("number:answer=100,relative=0.01", r"\boxed{101}", True),
    ("number:answer=100,relative=0.01", r"\boxed{101.1}", False),
    ("number:answer=0", "nan", False),
    ("number:answer=0", "inf", False),
    ("number:answer=0", "none", False),
    ('regex:pattern="^[a-z]{3}[0-9]$",match=fullmatch', "abc1", True),
    ('regex:pattern="b+",ignore_case=true', "aBa", True),
    ("regex:pattern=b", "a", False),
    ("math:answer=1/2", r"the answer is $\frac{2}{4}$", True),
    ("math:answer=x^2+2x+1", r"\boxed{(x+1)^2}", True),
    ("math:answer=7", "8", False),
    ("math:answer=7", "no idea", False),
    ('schema:schema={"type":"object","required":["a"]}', 'here: {"a": 1} done', True),
    ('schema:schema={"type":"object","required":["a"]}', '{"b": 1}', False),
    ('schema:schema={"type":"number"}', "```json\nNaN\n```", False),
    (table("schema", schema='{"multipleOf": 0.5, "type": "number"}'), "```\n1.5\n```", True),
    (SQUARE, "```python\ndef f(x):\n    return x * x\n```", True),
    (SQUARE, "Sure!\n```python\ndef f(x):\n    return x * x", True),
    (SQUARE, "def f(x): return 4", False),
    (SQUARE, "def f(x) return", False),
    (SQUARE, "", False),
    ('command:argv=["sh","-c","grep -q 42 candidate.txt && grep -q what problem.txt"]', "42", True),
    ('command:argv=["sh","check.sh"],files={"check.sh":"read x; test $x -gt 3"}', "2", False),
]


@pytest.mark.parametrize(("spec", "candidate", "passed"), CASES, ids=lambda value: str(value)[:60])
def test_a_candidate_passes_or_not(spec, candidate, passed):
    verifier = load_verifier(spec)
    verdict = verifier.verify(PROBLEM, candidate)
    assert verdict.passed is passed, verdict
    assert verdict.detail
    assert verifier.deposits
    again = load_verifier(VerifierSpec.of(verifier).as_dict())
    assert VerifierSpec.of(again) == VerifierSpec.of(verifier)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("text", "verifier.parameter"),
        ("text:answer=1,more=2", "verifier.parameter"),
        ("text:answer=1,take=middle", "verifier.parameter"),
        (table("text", answer=["1"]), "verifier.parameter"),
        ("text:answer=half \ud83d", "verifier.parameter"),
        ("normalised:answer=...", "verifier.parameter"),
        ("number:answer=nan", "verifier.parameter"),
        ("number:answer=inf", "verifier.parameter"),
        ("number:answer=two", "verifier.parameter"),
        ("number:answer=1,tolerance=nan", "verifier.parameter"),
        ("number:answer=1,tolerance=-1", "verifier.parameter"),
        ("regex:pattern=(", "verifier.parameter"),
        ("math:answer=", "verifier.parameter"),
        ('schema:schema={"type":"strange"}', "verifier.parameter"),
        ("schema:schema={", "verifier.syntax"),
        ("schema:schema=no", "verifier.parameter"),
        (table("python", tests="def"), "verifier.parameter"),
        (table("python", tests="x = 1"), "verifier.parameter"),
        ("python:tests=assert f(1),wall_s=0", "verifier.parameter"),
        ("command:argv=[]", "verifier.parameter"),
        ('command:argv=["sh"],files={"../x":""}', "verifier.parameter"),
        ('command:argv=["sh"],without=network', "verifier.parameter"),
        ("majority:votes=1", "verifier.parameter"),
    ],
    ids=lambda value: ascii(value)[:60],
)
def test_parameters_that_make_no_sense_are_one_error(spec, code):
    with pytest.raises(UsageError) as refused:
        load_verifier(spec)
    assert refused.value.code == code


def test_a_verifier_that_is_not_there_or_another_version_is_refused():
    with pytest.raises(NotFoundError, match="no verifier"):
        load_verifier("oracle")
    with pytest.raises(VersionError, match="version 1 here"):
        load_verifier({"name": "text", "version": "2", "parameters": {"answer": "1"}})


@pytest.mark.parametrize(
    ("spec", "candidate"),
    [
        ('regex:pattern="^(a+)+$",wall_s=1', "a" * 64 + "b"),
        ("math:answer=7,wall_s=1", r"\boxed{9^{9^{9^{9}}}}"),
        (table("schema", schema={"pattern": "^(a+)+$"}, wall_s=1), f'```json\n"{"a" * 64}b"\n```'),
        (table("python", tests="assert f(1)", wall_s=1), "def f(x):\n    while True: pass"),
        ('command:argv=["sh","-c","while true; do true; done"],wall_s=1', ""),
    ],
    ids=["regex", "math", "schema", "python", "command"],
)
def test_a_verifier_that_hangs_is_a_verdict_and_the_next_one_works(spec, candidate):
    verifier = load_verifier(spec)
    verdict = verifier.verify(PROBLEM, candidate)
    assert not verdict.passed
    assert "1 s" in verdict.detail
    assert load_verifier('regex:pattern="b"').verify(PROBLEM, "b").passed


@pytest.mark.parametrize(
    ("solution", "detail"),
    [
        ("import os; os._exit(0)", "before its tests"),
        ("raise SystemExit(0)", "before its tests"),
        ("print('[2, 2, \"\"]')\nraise SystemExit", "before its tests"),
        # all of them die at once: what they say is mixed, a status is one process's own
        (
            "import os\ntry:\n    while True: os.fork()\nexcept OSError as error: os._exit(error.errno)",
            f"exit status {errno.EAGAIN}",
        ),
        ("x = bytearray(2 << 30)", "MemoryError"),
        ("open('/usr/x', 'w')", "Read-only file system"),
        ("import socket; socket.create_connection(('127.0.0.1', 9), 1)", "Network is unreachable"),
        ("while True: print('x' * 10000)", "bytes of output"),
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("def f(x): raise SystemExit(0)", "before its tests"),
    ],
)
def test_a_solution_that_misbehaves_is_one_clear_verdict(solution, detail):
    verdict = load_verifier(SQUARE).verify(PROBLEM, solution)
    assert not verdict.passed
    assert detail in verdict.detail


def test_the_score_is_the_share_of_asserts_that_hold():
    verdict = load_verifier(SQUARE).verify(PROBLEM, "def f(x): return 4")
    assert verdict.score == 0.5
    assert verdict.detail == "1 of 2 asserts hold; assert f(n) == 9: AssertionError"


def test_a_schema_s_reference_to_another_place_is_not_fetched():
    verifier = load_verifier('schema:schema={"$ref":"http://127.0.0.1:1/x"}')
    with pytest.raises(UsageError, match="leads nowhere"):
        verifier.verify(PROBLEM, "{}")


def test_a_majority_is_weak_and_deposits_nothing_unless_told():
    verifier = load_verifier("majority:votes=2")
    assert not verifier.deposits
    assert load_verifier("majority:deposits=true").deposits
    said = [verifier.verify(PROBLEM, answer).passed for answer in ("Blue.", "red", "blue", "red", "blue")]
    assert said == [False, False, True, False, True]  # a tie is no majority
    assert not verifier.verify(Problem.of("another"), "blue").passed
    assert "weak" in verifier.verify(PROBLEM, "blue").detail


@given(st.fractions(max_denominator=1000), st.fractions(max_denominator=1000))
def test_numbers_are_compared_exactly(answer, found):
    verifier = load_verifier(table("number", answer=str(answer), tolerance="0.5"))
    assert verifier.verify(PROBLEM, f"it is {found}").passed == (abs(answer - found) <= Fraction(1, 2))


@given(st.sampled_from(["text:answer=4", "normalised:answer=4", "number:answer=4", "majority"]), st.text(max_size=80))
def test_any_candidate_gets_a_verdict(spec, candidate):
    assert load_verifier(spec).verify(PROBLEM, candidate).passed in (True, False)


@given(
    st.dictionaries(st.sampled_from(["answer", "take", "within", "wall_s", "argv"]), st.none() | st.text(max_size=4))
)
def test_any_parameters_make_a_verifier_or_a_coded_error(parameters):
    for name in ("text", "normalised", "number", "regex", "command", "majority"):
        try:
            load_verifier(table(name, **parameters))
        except CodedError as error:
            assert error.code == "verifier.parameter"  # noqa: PT017 (a value or this error, either will do)


PLUG_IN = """
import os, time

class Even:
    version = "3"
    deposits = True
    name = "even"

    def __init__(self, parameters):
        self.parameters = {"offset": int(parameters.get("offset", 0))}

    def verify(self, problem, candidate):
        from kvsync.library.verifiers import Verdict
        print("chatter on stdout")
        if candidate == "die":
            os._exit(1)
        number = int(candidate)
        return Verdict.of((number + self.parameters["offset"]) % 2 == 0, f"{number} for {problem.text}")
"""


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    """An installed distribution with a verifier."""
    from kvsync.library.verifiers.bounded import PLUG_IN_MEMORY
    from kvsync.library.verifiers.worker import worker

    (tmp_path / "evenness.py").write_text(PLUG_IN)
    info = tmp_path / "evenness-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evenness\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[kvsync.verifiers]\neven = evenness:Even\ntext = evenness:Even\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "even"
    worker("plug-in", memory=PLUG_IN_MEMORY).stop()


def test_a_plug_in_is_a_verifier_like_any_other(plug_in):
    assert plug_in in verifier_names()
    verifier = load_verifier("even:offset=1")
    assert VerifierSpec.of(verifier) == VerifierSpec("even", "3", {"offset": 1})
    assert verifier.verify(PROBLEM, "3").passed
    assert verifier.verify(PROBLEM, "4").detail == "4 for what is it?"
    assert "evenness" not in sys.modules


def test_a_plug_in_that_fails_or_dies_does_not_take_this_process_with_it(plug_in):
    verifier = load_verifier("even")
    with pytest.raises(UsageError, match="ValueError"):
        verifier.verify(PROBLEM, "no number")
    assert verifier.verify(PROBLEM, "die").detail == "the judge ended without a verdict"
    assert verifier.verify(PROBLEM, "2").passed


def test_a_plug_in_does_not_take_a_built_in_s_name(plug_in):
    assert load_verifier("text:answer=a").verify(PROBLEM, "a").passed
