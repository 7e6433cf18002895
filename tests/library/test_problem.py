"""A problem's address: white space and the Unicode form do not count, everything else does."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvsync.errors import UsageError
from kvsync.library.problem import MAX_PROBLEM_BYTES, Problem, normalise
from kvsync_protocol.digest import hash_record

SPACES = " \t\n\r\v\f\x1c\x1f\x85\xa0\u1680\u2000\u2003\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
WORD = st.text(st.characters(exclude_categories=("Cs", "Zs", "Zl", "Zp", "Cc")), min_size=1, max_size=8)
GAP = st.text(st.sampled_from(SPACES), min_size=1, max_size=4)
WORDS = st.lists(WORD, min_size=1, max_size=6)


@given(WORDS, st.data())
def test_white_space_does_not_change_the_address(words, data):
    spaced = data.draw(st.sampled_from(["", *SPACES]))
    for word in words:
        spaced += word + data.draw(GAP)
    assert Problem.of(spaced).address == Problem.of(" ".join(words)).address


@given(WORDS, st.sampled_from(["NFC", "NFD"]))
def test_the_unicode_form_does_not_change_the_address(words, form):
    text = " ".join(words)
    assert Problem.of(unicodedata.normalize(form, text)).address == Problem.of(text).address


@given(WORDS, WORDS)
def test_anything_else_changes_the_address(first, second):
    one, other = " ".join(first), " ".join(second)
    assume(unicodedata.normalize("NFC", one) != unicodedata.normalize("NFC", other))
    assert Problem.of(one).address != Problem.of(other).address


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is X?", "what is x?"),
        ("2 + 2", "2+2"),
        ("5 m", "5 M"),
        ("it is so.", "it is so"),
        ("x²", "x2"),  # NFKC would fold them
        ("ﬁne", "fine"),
        ("a\u200bb", "ab"),
    ],
)
def test_case_punctuation_and_compatibility_forms_count(one, other):
    assert Problem.of(one).address != Problem.of(other).address


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_normalising_twice_is_normalising_once(text):
    assume(text.strip())
    once = normalise(text)
    assert normalise(once) == once
    assert Problem.of(once).address == Problem.of(text).address


def test_the_address_is_the_hash_of_the_tag_and_the_normalised_text():
    problem = Problem.of("  What \n is\t2 + 2? ")
    assert problem.normalised == "What is 2 + 2?"
    assert problem.address == hash_record("kvsync/problem/1", [b"What is 2 + 2?"])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "problem.empty"),
        (" \t\u3000\n", "problem.empty"),
        ("half \ud83d", "problem.encoding"),
        ("x" * (MAX_PROBLEM_BYTES + 1), "problem.size"),
    ],
)
def test_what_is_no_problem_is_refused(text, code):
    with pytest.raises(UsageError) as refused:
        Problem.of(text)
    assert refused.value.code == code
