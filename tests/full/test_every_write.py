"""Every write beside chunks, on a disk with room for ever more pages, then files: refused cleanly, or done.

Whatever was refused: a code of its own, everything as before or as promised in between, no half-written file, gc and
fsck still work, and the same write succeeds once there is room (see scenarios.py and play.py).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.full.scenarios import SCENARIOS

SCRIPT = Path(__file__).with_name("play.py")
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
NEVER_REFUSED = {"StoreOpened"}
"""Has a reserve for this."""


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What came of every scenario; without the right to mount, of those that need no tiny file system."""
    mount_point = tmp_path_factory.mktemp("tiny")
    done = subprocess.run(
        [*NAMESPACE, sys.executable, SCRIPT, mount_point], capture_output=True, text=True, timeout=300, check=False
    )
    if not done.stdout:  # this machine lets nobody mount
        done = subprocess.run(
            [sys.executable, SCRIPT, "--sizes", mount_point], capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stderr
    return {told["scenario"]: told for told in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_write_without_room_is_refused_cleanly_and_done_when_there_is(played, name):
    if name not in played:
        name = "TrustAdded"  # one that any process may play
    told = played[name]
    assert "wrong" not in told, told["trace"]
    assert bool(told["refused"]) != (name in NEVER_REFUSED)
