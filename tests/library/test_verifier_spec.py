"""Verifier specs in both written forms, and verdicts."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import UsageError
from kvsync.library.verifiers import Verdict, VerifierSpec
from kvsync_protocol.errors import CodedError

SCALARS = st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(max_size=20)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "name", "parameters"),
    [
        ("number", "number", {}),
        ("number:", None, None),
        ("number:answer=42,tolerance=0.01", "number", {"answer": "42", "tolerance": "0.01"}),
        ('regex:pattern="a,b=c"', "regex", {"pattern": "a,b=c"}),
        ('command:argv=["sh", "-c", "exit 0"],wall_s=3', "command", {"argv": ["sh", "-c", "exit 0"], "wall_s": "3"}),
        ('text:answer={"a": [1, true, null]}', "text", {"answer": {"a": [1, True, None]}}),
        ("text:answer=", "text", {"answer": ""}),
        ("text:answer=a=b", "text", {"answer": "a=b"}),
        ('{"name": "text", "parameters": {"answer": "4"}}', "text", {"answer": "4"}),
        ("text:answer", None, None),
        ("text:answer=1,", None, None),
        ("text:answer=1,answer=2", None, None),
        ("text:Answer=1", None, None),
        ('text:answer="1"2', None, None),
        ('text:answer=["', None, None),
        ('text:answer={"a":1,"a":2}', None, None),
        ("text:answer=[1.5]", None, None),
        ("text:answer=[9007199254740993]", None, None),
        ("", None, None),
        ("Text", None, None),
        ('{"name": "text", "extra": 1}', None, None),
        ('{"name": "text", "parameters": []}', None, None),
        ('{"name": "text"', None, None),
        ("text:answer=[" * 3000, None, None),
    ],
)
def test_a_written_spec_means_one_thing_or_is_refused(text, name, parameters):
    if name is None:
        with pytest.raises(UsageError) as refused:
            VerifierSpec.parse(text)
        assert refused.value.code == "verifier.syntax"
    else:
        spec = VerifierSpec.parse(text)
        assert (spec.name, spec.version, dict(spec.parameters)) == (name, None, parameters)


@given(
    st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), VALUES, max_size=4),
    st.none() | st.just("2"),
)
def test_a_spec_survives_its_table(parameters, version):
    spec = VerifierSpec("plug.in", version, parameters)
    assert VerifierSpec.parse(spec.as_dict()) == spec


@given(st.text(max_size=60))
def test_any_text_is_a_spec_or_a_usage_error(text):
    with contextlib.suppress(UsageError):
        assert VerifierSpec.parse(text).name


@pytest.mark.parametrize("value", [1.5, float("nan"), b"x", {1: 2}, {"a": {"b": object()}}])
def test_parameters_that_are_no_strict_json_are_refused(value):
    with pytest.raises(UsageError, match=r"parameter|member"):
        VerifierSpec.parse({"name": "text", "parameters": {"answer": value}})


def test_a_task_s_answer_is_added_to_a_spec():
    spec = VerifierSpec.parse("number:tolerance=0.01").adding(answer="7")
    assert dict(spec.parameters) == {"tolerance": "0.01", "answer": "7"}


@given(st.booleans(), st.floats(0, 1), st.text(max_size=700))
def test_a_verdict_survives_its_dict_and_is_one_line(passed, score, detail):
    verdict = Verdict(passed, score, detail)
    assert Verdict.from_dict(verdict.as_dict()) == verdict
    assert len(verdict.detail) <= 500
    assert not set(verdict.detail) & set("\n\r\t\x00\x85")
    verdict.detail.encode()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Verdict(1, 1.0, ""),  # type: ignore[arg-type]
        lambda: Verdict(True, float("nan"), ""),
        lambda: Verdict(True, 1.1, ""),
        lambda: Verdict(True, True, ""),
        lambda: Verdict.from_dict({"passed": True, "score": "1e0"}),
        lambda: Verdict.from_dict({"passed": True, "score": "1.0", "detail": ""}),
    ],
)
def test_a_plug_in_s_verdict_that_is_none_is_refused(make):
    with pytest.raises(CodedError) as refused:
        make()
    assert refused.value.code in ("verifier.verdict", "receipt.figure")
