"""The receipts that are kept in the repository: each is sound, signed by the key that its page names above it."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvsync.library.evaluation.plan import at_most, digest_of
from kvsync.library.tasks import FAMILIES, Task, generate
from kvsync_protocol import figure

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "evidence"
PAGE = (FOLDER / "README.md").read_text("utf-8")
LIBRARY_PAGE = (DOCS / "library.md").read_text("utf-8")
KEPT = sorted(path.name for path in FOLDER.glob("*.receipt"))
LIBRARIES = [name for name in KEPT if name.partition("-")[0] in FAMILIES]
TRANSFERS = [name for name in LIBRARIES if name.endswith("-transfer.receipt")]
PROBLEMS = {
    "labels-transfer.receipt": 100,
    "labels-recurrence.receipt": 40,
    "handbook-transfer.receipt": 20,
    "procedures-transfer.receipt": 20,
    "programs-transfer.receipt": 20,
}
"""Of each split."""


@functools.cache
def checked(name: str, *more: str) -> Any:
    keys = re.findall(r"ed25519:[A-Za-z0-9_-]{43}", PAGE.partition(f"| `{name}` |")[0])
    command = ["-m", "kvsync.cli", "receipts", "check", str(FOLDER / name), "--public-key", keys[-1], "--json", *more]
    done = subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return json.loads(done.stdout)


def row(name: str) -> str:
    return PAGE.partition(f"| `{name}` |")[2].partition("\n")[0]


def test_the_page_lists_what_is_there_and_nothing_else() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+\.receipt)` \| `([0-9a-f]{16})…`", PAGE, re.MULTILINE)
    found = {name: sha256((FOLDER / name).read_bytes()).hexdigest()[:16] for name in KEPT}
    assert len(rows) == len(KEPT)
    assert dict(rows) == found


@pytest.mark.parametrize("name", [name for name in KEPT if name not in LIBRARIES])
def test_a_kept_receipt_is_sound_and_exact(name: str) -> None:
    said = checked(name)
    assert said["summary"]["exact"] is True
    assert said["run"]["count"] == 50


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_verdict_of_a_kept_library_follows_and_every_graft_is_the_text(name: str) -> None:
    said = checked(name, "--reverify")
    conditions = said["summary"]["conditions"]
    attempts = sum(sum(each["attempts"].values()) for each in conditions.values())
    stored = conditions.get("stream", {"attempts": {}})["attempts"].get(
        "deposit", 0
    )  # what was judged when it answered
    assert said["verdicts"] == {"again": attempts - stored, "taken": 0, "unkept": 0}
    looked = {condition: each["plain"] for condition, each in conditions.items()}
    assert sum(each["checked"] for each in looked.values()) >= 5
    assert all(each["checked"] == each["equal"] for each in looked.values())
    assert said["run"]["tasks"] == str(digest_of(asked(name)))


def asked(name: str) -> list[Task]:
    """The tasks as the page's commands make them."""
    every = generate(name.partition("-")[0], seed=7, count=240)
    if "stream" not in name:
        return list(at_most(every, PROBLEMS[name]))
    offices = {task.problem.text.split()[2] for task in every[:4]}
    return [task for task in every if task.problem.text.split()[2] in offices][:24]


def test_every_family_s_transfer_is_shown_or_said_to_be_missing() -> None:
    missing = LIBRARY_PAGE.partition("There is no receipt yet of ")[2].partition(".")[0]
    assert {f"{family}-transfer.receipt" for family in FAMILIES} - {*TRANSFERS} == {
        f"{family}-transfer.receipt" for family in re.findall("`([a-z]+)`", missing)
    }


@pytest.mark.parametrize("name", TRANSFERS)
def test_held_out_transfer_is_what_the_pages_say(name: str) -> None:
    summary = checked(name)["summary"]
    assert {each["problems"] for each in summary["conditions"].values()} == {PROBLEMS[name]}
    control, transfer, negative = (summary["conditions"][each] for each in ("control", "transfer", "negative"))
    shares = (
        f"control {percent(control['accuracy'])} %, transfer {percent(transfer['accuracy'])} % "
        f"({percent(transfer['low'])} to {percent(transfer['high'])}), "
        f"negative control {percent(negative['accuracy'])} %"
    )
    points, low, high = (figure.read(summary["transfer"][each]) for each in ("points", "points_low", "points_high"))
    assert f"{shares}; {points:+.1f} points ({low:+.1f} to {high:+.1f})" in row(name)
    assert shares in LIBRARY_PAGE


def percent(share: str) -> str:
    return f"{100 * figure.read(share):.1f}".removesuffix(".0")


def test_one_family_transfers_by_thirty_points_and_no_unrelated_library_does() -> None:
    summary = checked("labels-transfer.receipt")["summary"]
    assert figure.read(summary["transfer"]["points_low"]) >= 30
    for name in TRANSFERS:
        assert figure.read(checked(name)["summary"]["negative"]["points_low"]) <= 0


def test_what_was_never_solved_unaided_is_answered_when_it_comes_back() -> None:
    said = checked("labels-recurrence.receipt")
    assert said["run"]["budget"] == 4000
    found = said["summary"]["recurrence"]
    assert found["never_solved"] == PROBLEMS["labels-recurrence.receipt"]
    assert found["never_solved_control_decoded"] == 4000 * found["never_solved"]
    assert found["never_solved_answered"] >= 0.95 * found["never_solved"]
    answered = f"{found['never_solved_answered']} of {found['never_solved']} answered"
    tokens = f"{found['never_solved_decoded']} decoded tokens against {found['never_solved_control_decoded']:,}"
    for page in (row("labels-recurrence.receipt"), LIBRARY_PAGE):
        assert answered in page
        assert f"{tokens}, {figure.read(found['never_solved_factor']):.0f} times fewer" in page


def test_the_flywheel_turns() -> None:
    first, *_, last = checked("labels-stream.receipt")["summary"]["windows"]
    assert figure.read(last["accuracy"]) > figure.read(first["accuracy"])
    assert last["decoded"] < first["decoded"] / 3
    for page in (row("labels-stream.receipt"), LIBRARY_PAGE):
        for each in (first, last):
            shown = (
                f"{percent(each['accuracy'])} % for {each['decoded'] / each['problems']:.0f} decoded tokens a problem"
            )
            assert shown in page
