"""The receipts that are kept in the repository: each is sound, signed by the key that its page names above it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kvsync.library.evaluation.plan import at_most, digest_of
from kvsync.library.tasks import Task, generate
from kvsync_protocol import figure

FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
PAGE = (FOLDER / "README.md").read_text("utf-8")
KEPT = sorted(path.name for path in FOLDER.glob("*.receipt"))
LIBRARIES = [name for name in KEPT if name.startswith("labels-")]


def checked(name: str) -> Any:
    keys = re.findall(r"ed25519:[A-Za-z0-9_-]{43}", PAGE.partition(f"| `{name}` |")[0])
    command = ["-m", "kvsync.cli", "receipts", "check", str(FOLDER / name), "--public-key", keys[-1], "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return json.loads(done.stdout)


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
    said = checked(name)
    assert said["verdicts"]["again"] > 0
    looked = {condition: each["plain"] for condition, each in said["summary"]["conditions"].items()}
    assert sum(each["checked"] for each in looked.values()) >= 5
    assert all(each["checked"] == each["equal"] for each in looked.values())
    assert said["run"]["tasks"] == str(digest_of(asked(name)))


def asked(name: str) -> list[Task]:
    """The tasks as the page's commands make them."""
    every = generate("labels", seed=7, count=240)
    if "stream" not in name:
        return list(at_most(every, 40 if "transfer" in name else 10))
    offices = {task.problem.text.split()[2] for task in every[:4]}
    return [task for task in every if task.problem.text.split()[2] in offices][:24]


def test_held_out_transfer_is_what_the_page_says() -> None:
    said = checked("labels-transfer.receipt")
    assert said["verdicts"]["taken"] == 0
    assert figure.read(said["summary"]["transfer"]["points_low"]) >= 30
    assert figure.read(said["summary"]["negative"]["points"]) <= 0


def test_what_was_never_solved_unaided_is_answered_when_it_comes_back() -> None:
    said = checked("labels-recurrence.receipt")
    assert said["run"]["budget"] == 4000
    found = said["summary"]["recurrence"]
    assert found["never_solved"] == 10
    assert found["never_solved_answered"] >= 0.95 * found["never_solved"]
    assert figure.read(found["never_solved_factor"]) > 100


def test_the_flywheel_turns() -> None:
    first, *_, last = checked("labels-stream.receipt")["summary"]["windows"]
    assert figure.read(last["accuracy"]) > figure.read(first["accuracy"])
    assert last["decoded"] < first["decoded"] / 3
