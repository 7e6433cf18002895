"""`kvsync library ingest` and `kvsync ask`: what a person sees, and one clear error for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
QUESTION = "What is the door code of Kraidel Mill?"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    found = tmp_path / "docs"
    found.mkdir()
    (found / "mill.md").write_text("# Mill\n\nthe door code of Kraidel Mill is w8\n")
    (found / "hall.txt").write_text("the warden of Brimoult Hall is w9\n")
    (found / "picture.png").write_bytes(b"\x89PNG")
    return found


@pytest.fixture
def site(home: Path, kvsync: Command, tiny_model_dir: Path, documents: Path) -> Path:
    """A library with two documents."""
    made = kvsync("library", "ingest", documents, "--library", "site", "--model", tiny_model_dir, "--max-tokens", 32)
    assert made.status == 0, made.err
    assert "2 new, 0 changed" in made.out
    assert "passed over picture.png: its suffix" in made.err
    return home


def test_a_question_is_answered_with_a_citation(site: Path, kvsync: Command, tiny_model_dir: Path):
    words = ("ask", QUESTION, "--library", "site", "--model", tiny_model_dir, "--max-tokens", 3)
    asked = kvsync(*words, "--show", "--json").json
    assert (asked["cited"]["document"], asked["cited"]["section"]) == ("mill.md", "Mill")
    assert (asked["cited"]["start"], asked["cited"]["stop"]) == (0, 44)
    assert asked["text"] == "# Mill\n\nthe door code of Kraidel Mill is w8\n"
    assert (asked["cost"]["decoded"], asked["cost"]["grafted"]) == (3, asked["cited"]["tokens"])
    told = kvsync(*words, "--show").out
    for part in ("mill.md", "0-44 of 44", asked["cited"]["artifact"], asked["text"].splitlines()[-1]):
        assert part in told


def test_candidates_are_listed_without_a_model(site: Path, kvsync: Command):
    found = kvsync("ask", "the warden of Kraidel Mill", "--library", "site", "--top", 5, "--json").json["candidates"]
    assert {each["document"] for each in found} == {"mill.md", "hall.txt"}
    assert found == sorted(found, key=lambda each: -each["score"])
    listed = kvsync("ask", QUESTION, "--library", "site", "--top", 1, "--show").out
    assert "mill.md, Mill, characters 0-44" in listed
    assert "the door code of Kraidel Mill is w8" in listed


def test_what_matches_nothing_ends_with_its_own_status(site: Path, kvsync: Command):
    for words in (("--top", 3), ()):
        found = kvsync("ask", "quantum zebra?", "--library", "site", *words)
        assert (found.status, found.out) == (7, "nothing in site matches the question\n")
    kvsync("library", "create", "empty")
    empty = kvsync("ask", QUESTION, "--library", "empty")
    assert (empty.status, empty.out) == (7, "empty holds no documents\n")
    assert "kvsync library ingest" in empty.err


def test_passages_are_shown_and_removed(site: Path, kvsync: Command):
    shown = kvsync("library", "show", "site", "--json").json
    assert shown["entries"] == []
    assert [each["document"] for each in shown["passages"]] == ["hall.txt", "mill.md"]
    short = shown["passages"][0]["passage"].removeprefix("sha256:")[:12]
    assert "the warden of Brimoult Hall is w9" in kvsync("library", "show", "site", short).out
    assert "mill.md, Mill" in kvsync("library", "show", "site").out
    assert kvsync("library", "remove", "site", short).status == 0
    assert [each["document"] for each in kvsync("library", "show", "site", "--json").json["passages"]] == ["mill.md"]


def test_a_second_run_says_what_is_gone_and_prune_drops_it(
    site: Path, kvsync: Command, documents: Path, tiny_model_dir: Path
):
    (documents / "hall.txt").unlink()
    words = ("library", "ingest", documents, "--library", "site", "--model", tiny_model_dir, "--max-tokens", 32)
    again = kvsync(*words)
    assert "0 computed, 0 removed" in again.out
    assert "1 document of before are in the folder no more" in again.err
    pruned = kvsync(*words, "--prune", "--json").json
    assert (pruned["gone"], pruned["passages"]) == (["hall.txt"], {"all": 1, "computed": 0, "removed": 1})


@pytest.mark.parametrize(
    ("words", "code", "status"),
    [
        (("library", "ingest", "nowhere", "--library", "site"), "corpus.missing", 7),
        (("library", "ingest", ".", "--library", "a/../b"), "ref.name", 3),
        (("library", "ingest", ".", "--library", "site", "--max-tokens", "3"), "corpus.max_tokens", 2),
        (("ask", QUESTION, "--library", "none"), "library.unknown", 7),
        (("ask", " ", "--library", "site"), "problem.empty", 2),
    ],
)
def test_bad_input_is_one_clear_error(
    site: Path, kvsync: Command, tiny_model_dir: Path, words: tuple[str, ...], code: str, status: int
):
    found = kvsync(*words, "--model", tiny_model_dir, "--json")
    assert (found.code, found.status) == (code, status)


def test_an_ingest_that_cannot_begin_makes_no_library(home: Path, kvsync: Command, tiny_model_dir: Path):
    for words in (("nowhere",), (home, "--max-tokens", 3), (home, "--model", "nothing")):
        assert kvsync("library", "ingest", *words, "--library", "new", *model(words, tiny_model_dir)).status != 0
    assert kvsync("library", "ls", "--json").json == {"libraries": []}


def model(words: tuple[object, ...], known: Path) -> tuple[object, ...]:
    return () if "--model" in words else ("--model", known)
