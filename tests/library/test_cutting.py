"""Where documents are cut: passages are the document again, fit their limit, and divide nothing that fits alone."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.engines.engine import Engine
from kvsync.errors import UsageError
from kvsync.library.corpus.cutting import cut
from kvsync.library.corpus.folder import Document
from kvsync.library.corpus.outline import Outline
from kvsync.library.corpus.phrasing import Phrasing
from kvsync.library.corpus.terms import terms
from kvsync_protocol.digest import sha256

BIT = st.sampled_from(
    ["a", "Bc", " ", "\n", "\n\n", "# T\n", "## U\n", "def f():\n", "=====\n", "e. ", "```\n", "。", "é"]
)
TEXTS = st.lists(BIT, min_size=1, max_size=60).map("".join) | st.text(min_size=1, max_size=80)
NAMES = st.sampled_from(["a.md", "b/c.rst", "d.py", "e.csv", "f"])
WORDS = re.compile(r"\w+")


def words_fit(text: str, limit: int):
    return lambda start, stop: len(WORDS.findall(text[start:stop])) <= limit


@given(TEXTS, NAMES, st.integers(1, 12), st.integers(1, 90))
def test_the_passages_one_behind_the_other_are_the_document_and_each_fits(text, name, limit, most):
    found = list(cut(text, Outline.of(name, text), words_fit(text, limit), most))
    assert "".join(text[start:stop] for start, stop in found) == text
    assert [stop for _, stop in found[:-1]] == [start for start, _ in found[1:]]
    for start, stop in found:
        assert 0 < stop - start <= most
        assert stop - start == 1 or words_fit(text, limit)(start, stop)


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(3, 20))
def test_a_section_or_paragraph_that_would_fit_alone_is_never_divided(sections, limit):
    """Sections of paragraphs of so many words."""
    parts = [[" ".join(["w"] * count) + "\n\n" for count in section] for section in sections]
    text = "".join(f"# t\n\n{''.join(section)}" for section in parts)
    outline = Outline.of("a.md", text)
    places = {start for start, _ in cut(text, outline, words_fit(text, limit), len(text) + 1)}
    for start, stop in pairwise((*outline.starts, len(text))):
        inside = {place for place in places if start < place < stop}
        assert not inside or len(WORDS.findall(text[start:stop])) > limit
        paragraph = start
        for found in re.finditer(r"\n\n", text[start:stop]):
            end = start + found.end()
            within = {place for place in places if paragraph < place < end}
            assert not within or len(WORDS.findall(text[paragraph:end])) > limit
            paragraph = end


def test_as_many_sections_as_fit_share_a_passage():
    text = "".join(f"# s{number}\n\n{'w ' * 4}\n\n" for number in range(6))
    found = list(cut(text, Outline.of("a.md", text), words_fit(text, 10), 1000))
    assert [len(WORDS.findall(text[start:stop])) for start, stop in found] == [10, 10, 10]


def test_sections_have_titles_and_what_covers_several_has_those_they_share():
    text = "# Book\n\nintro\n\n## One\n\na\n\n### Deep\n\nb\n\n## Two\n\nc\n\n```\n# no title\n```\n"
    outline = Outline.of("x.md", text)
    assert outline.titles == (("Book",), ("Book", "One"), ("Book", "One", "Deep"), ("Book", "Two"))
    assert outline.over(0, len(text)) == "Book"
    assert outline.over(text.index("## One"), text.index("## Two")) == "Book > One"
    assert outline.over(text.index("c\n"), len(text)) == "Book > Two"
    assert Outline.of("x.csv", text).titles == ((),)
    code = "import a\n\n@b\ndef one():\n    def inner(): ...\n\nclass Two:\n    pass\n"
    assert list(Outline.of("m.py", code).titles) == [(), ("one",), ("Two",)]
    prose = "Title\n=====\n\nPart\n----\n\ntext\n---\n\nOther\n-----\n"
    assert Outline.of("p.rst", prose).titles == (("Title",), ("Title", "Part"), ("Title", "Other"))


@given(st.lists(st.sampled_from(["w1", "w2 w3", "\n\n", "w4\n", "# w5\n", "  "]), max_size=60).map("".join))
def test_no_passage_has_more_tokens_than_the_limit_its_heading_included(engine: Engine, text: str):
    document = Document("w7/w8.md", sha256(text.encode()), text)
    found = list(Phrasing(engine, 32).passages(document))
    covered = 0
    for passage in found:
        assert not text[covered : passage.start].strip()
        assert passage.text == text[passage.start : passage.stop]
        assert passage.tokens == len(engine.encode(passage.prompt)) <= 32
        covered = passage.stop
    assert not text[covered:].strip()


@pytest.mark.parametrize("limit", [0, 31, 30_000])
def test_a_limit_that_leaves_no_room_is_refused(engine: Engine, limit: int):
    with pytest.raises(UsageError) as refused:
        Phrasing(engine, limit)
    assert refused.value.code == "corpus.max_tokens"


def test_a_question_becomes_its_telling_words_and_the_phrases_between_them():
    assert terms("What is the door code of Brimouth Hall?") == [
        *("door", "code", "brimouth", "hall"),
        *("door code", "code of brimouth", "brimouth hall"),
    ]
    assert terms("Who are you?") == ["who", "are", "you", "who are", "are you"]
    assert terms('"); DROP -- *^') == ["drop"]
    assert terms("?!") == []
