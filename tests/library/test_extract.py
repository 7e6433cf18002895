"""Where the answer stands in a text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.library.extract import RULES, answer_number, numbers, take


@pytest.mark.parametrize(
    ("rule", "text", "found"),
    [
        ("whole", " a\n", " a\n"),
        ("line", "\n  first \nsecond", "first"),
        ("line", " \n", None),
        ("sentence", "It is 3.5 m. Or not.\nNo.", "It is 3.5 m."),
        ("sentence", "\n", None),
        ("last_line", "first\nlast\n\n", "last"),
        ("boxed", r"\boxed{1} then \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} then \boxed{2", "1"),
        ("boxed", r"\boxed{a\}b}", r"a\}b"),
        ("boxed", "none", None),
        ("marked", "The answer is 4.\nQ: what?", "4."),
        ("marked", "Answer: 3\nAnswer:5", "5"),
        ("marked", "#### 18", "18"),
        ("marked", "answered", None),
        ("answer", r"Answer: 3, \boxed{4}", "4"),
        ("answer", "so it goes\nblue", "blue"),
        ("code", "```python\na\n```\n```\nb\n```", "a\n"),
        ("code", "```\na\n```\n```sh\nb\n```", "b\n"),
        ("code", "```py\ncut off", "cut off"),
        ("code", "plain", "plain"),
        ("json", 'x {"a": [1]} y {z', '{"a": [1]}'),
        ("json", "```json\n[1]\n```\n[2]", "[1]"),
        ("json", "no", None),
    ],
)
def test_a_rule_takes_one_place(rule, text, found):
    assert take(rule, text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("3 - 4", "3 4"),
        ("x = -5.", "-5"),
        ("−5", "-5"),
        ("1,234.50 and 10, 20", "2469/2 10 20"),
        ("3/4 1/0", "3/4"),
        ("KX-41 x2 1.5.2", "41"),
        ("50% 5kg $7 2e3", "50 5 7 2000"),
        ("nan inf infinity", ""),
    ],
)
def test_numbers_are_read_as_documented(text, found):
    assert " ".join(str(value) for value in numbers(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (r"7 \boxed{8} 9", 8),
        ("The answer is 42, not 7.\n9", 42),
        ("The answer is unknown, 6 or 7", 6),
        ("2 + 2 = 4", 4),
        ("none", None),
    ],
)
def test_the_number_that_answers(text, found):
    assert answer_number(text) == found


@given(st.text(st.sampled_from('`{}[]\\boxed\n answer:#1,./-"')))
def test_every_rule_takes_any_text(text):
    for rule in RULES:
        found = take(rule, text)
        assert found is None or isinstance(found, str)
    answer_number(text)


@pytest.mark.parametrize("unit", ["1", "1,", "```\n", "\\boxed{", "{", "[[", "answer is ", " ", "-", '{"a":'])
def test_a_long_text_of_any_one_thing_is_read(unit):
    text = unit * (200_000 // len(unit))
    for rule in RULES:
        take(rule, text)
    answer_number(text)
