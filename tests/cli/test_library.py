"""`kvsync library` and `kvsync solve`: what a person sees, and one clear error for whatever is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Command = Callable[..., Any]
VERIFIER = "text:answer=w20 w21"
PROBLEM = "w1 w2 w3"


@pytest.fixture
def maths(home: Path, kvsync: Command, tiny_model_dir: Path) -> Path:
    """A library with one entry."""
    assert kvsync("library", "create", "maths").status == 0
    added = kvsync(
        "library", "add", "maths", PROBLEM, "--solution", "w20 w21", "--verifier", VERIFIER, "--model", tiny_model_dir
    )
    assert added.status == 0, added.err
    return home


def test_a_library_is_made_filled_shown_asked_and_removed(maths: Path, kvsync: Command, tiny_model_dir: Path):
    listed = kvsync("library", "ls", "--json").json["libraries"]
    assert [(each["name"], each["entries"], each["quarantined"]) for each in listed] == [("maths", 1, 0)]
    (entry,) = kvsync("library", "show", "maths", "--json").json["entries"]
    assert (entry["problem"], entry["solution"]) == (PROBLEM, "w20 w21")
    short = entry["entry"].removeprefix("sha256:")[:12]
    one = kvsync("library", "show", "maths", short)
    assert "w20 w21" in one.out
    assert "answers   yes" in one.out

    asked = ("solve", " w1   w2 w3", "--library", "maths", "--verifier", VERIFIER, "--model", tiny_model_dir)
    solved = kvsync(*asked, "--json")
    assert solved.status == 0
    assert (solved.json["strategy"], solved.json["answer"]) == ("exact", "w20 w21")
    assert solved.json["costs"]["exact"]["grafted"] == entry["tokens"]
    assert "answered by  exact" in kvsync(*asked).out

    assert kvsync("library", "remove", "maths", short).status == 0
    assert kvsync("library", "show", "maths", "--json").json["entries"] == []
    assert kvsync("library", "remove", "maths").status == 0
    assert kvsync("library", "ls", "--json").json == {"libraries": []}


def test_what_nothing_answers_within_the_budget_ends_with_its_own_status(
    maths: Path, kvsync: Command, tiny_model_dir: Path, tmp_path: Path
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('order = ["greedy"]\nmax_tokens = 3\n')
    words = ("solve", "w9", "--library", "maths", "--verifier", "text:answer=never", "--model", tiny_model_dir)
    found = kvsync(*words, "--recipe", recipe, "--json")
    assert found.status == 7
    assert (found.json["answer"], found.json["cost"]["decoded"]) == (None, 3)


@pytest.mark.parametrize(
    ("recipe", "code"),
    [
        ("order = [", "recipe.syntax"),
        ("orders = []", "recipe.unknown"),
        ('order = ["guess"]', "recipe.value"),
        ("order = []", "recipe.value"),
        ("samples = 0", "recipe.value"),
        ("temperatures = [0]", "recipe.value"),
        ('temperatures = ["warm"]', "recipe.type"),
        ("deposit = 1", "recipe.type"),
        ('stops = [""]', "recipe.value"),
        ('recall = "guess"', "recipe.value"),
    ],
)
def test_a_recipe_is_read_strictly(home: Path, kvsync: Command, tmp_path: Path, recipe: str, code: str):
    path = tmp_path / "recipe.toml"
    path.write_text(recipe)
    found = kvsync("solve", "w1", "--library", "maths", "--verifier", VERIFIER, "--recipe", path, "--json")
    assert (found.status, found.code) == (2, code)


@pytest.mark.parametrize(
    ("words", "status", "code"),
    [
        (("library", "show", "nowhere"), 7, "library.unknown"),
        (("library", "remove", "nowhere"), 7, "library.unknown"),
        (("library", "create", "../x"), 3, "ref.name"),
        (("library", "create", "maths"), 2, "library.exists"),
        (("library", "show", "maths", "12345678"), 7, "library.unknown_entry"),
        (("library", "sync", "maths", "nobody"), 7, "peer.unknown"),
        (("solve", "w1", "--library", "nowhere", "--verifier", VERIFIER), 7, "library.unknown"),
        (("solve", "w1", "--library", "maths", "--verifier", "guess"), 7, "verifier.unknown"),
        (("solve", "w1", "--library", "maths", "--verifier", VERIFIER, "--budget", "0"), 2, "usage.arguments"),
        (("solve", "w1", "--library", "maths", "--verifier", VERIFIER, "--model", "nowhere"), 7, "model.unknown"),
    ],
)
def test_whatever_is_wrong_is_one_clear_error(
    home: Path, kvsync: Command, words: tuple[str, ...], status: int, code: str
):
    kvsync("library", "create", "maths")
    found = kvsync(*words, "--json")
    assert (found.status, found.code) == (status, code)


def test_a_wrong_or_an_empty_problem_is_not_stored(maths: Path, kvsync: Command, tiny_model_dir: Path):
    add = ("library", "add", "maths", "--verifier", VERIFIER, "--model", tiny_model_dir, "--json")
    wrong = kvsync(*add, "w5", "--solution", "w22")
    assert (wrong.status, wrong.code) == (5, "library.not_verified")
    empty = kvsync(*add, " ", "--solution", "w20 w21")
    assert (empty.status, empty.code) == (2, "problem.empty")
    assert len(kvsync("library", "show", "maths", "--json").json["entries"]) == 1


def test_a_damaged_list_is_named_and_a_damaged_entry_never_answers(
    maths: Path, kvsync: Command, tiny_model_dir: Path, tmp_path: Path
):
    folder = maths / "libraries" / "maths"
    (entry,) = (folder / "entries").iterdir()
    envelope = json.loads(entry.read_bytes())
    envelope["payload"] = envelope["payload"][:-8] + "AAAAAAA="
    entry.write_text(json.dumps(envelope))
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('order = ["exact"]\n')
    words = ("solve", PROBLEM, "--library", "maths", "--verifier", VERIFIER, "--model", tiny_model_dir)
    missed = kvsync(*words, "--recipe", recipe, "--json")
    assert (missed.status, missed.json["attempts"]) == (7, [])
    (folder / "index.sqlite").write_bytes(b"not a database")
    assert kvsync(*words, "--recipe", recipe, "--json").json["attempts"] == []
    (folder / "list.json").write_text("{}")
    damaged = kvsync("library", "show", "maths", "--json")
    assert (damaged.status, damaged.code) == (9, "library.damaged")
