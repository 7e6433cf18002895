"""The receipts that are kept in the repository: each is sound, exact, signed by the key that their page names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "evidence"
PAGE = (FOLDER / "README.md").read_text("utf-8")
KEPT = sorted(path.name for path in FOLDER.glob("*.receipt"))


def test_the_page_lists_what_is_there_and_nothing_else() -> None:
    rows = re.findall(r"^\| `([a-z0-9-]+\.receipt)` \| `([0-9a-f]{16})…`", PAGE, re.MULTILINE)
    found = {name: sha256((FOLDER / name).read_bytes()).hexdigest()[:16] for name in KEPT}
    assert len(rows) == len(KEPT)
    assert dict(rows) == found


@pytest.mark.parametrize("name", KEPT)
def test_a_kept_receipt_is_sound_and_exact(name: str) -> None:
    key = re.search(r"ed25519:[A-Za-z0-9_-]{43}", PAGE)
    assert key is not None
    command = ["-m", "kvsync.cli", "receipts", "check", str(FOLDER / name), "--public-key", key.group(), "--json"]
    done = subprocess.run([sys.executable, *command], capture_output=True, check=True)
    said = json.loads(done.stdout)
    assert said["summary"]["exact"] is True
    assert said["run"]["count"] == 50
