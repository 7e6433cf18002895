"""Addresses that mean something on one link only, as on a cable between two hosts (see link_local.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# A loopback interface of its own, which may be given addresses.
NAMESPACE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


def test_chunks_come_over_an_address_of_one_link_and_in_the_clear_on_a_listed_link_alone(tmp_path: Path) -> None:
    command = [*NAMESPACE, sys.executable, "-m", "tests.sync.link_local", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    said = [f"fe80::1%lo {unencrypted}" for unencrypted in (False, True, True, False)]  # link_local.LISTED
    assert (done.returncode, done.stdout.splitlines()) == (0, said), done.stderr
