"""A full disk is a clean refusal that keeps verified partials, and gc works on it (see full_disk.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("full_disk.py")
NAMESPACE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]


@pytest.fixture(scope="session")
def may_mount():
    """Whether this machine lets us mount a tiny file system in a namespace of our own."""
    tried = [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "scenario",
    ["reservation", "interrupted_pull", "interrupted_computation", "collection", "eviction", "limited_files"],
)
def test_a_full_disk_is_refused_cleanly_and_nothing_verified_is_lost(tmp_path, may_mount, scenario):
    if not may_mount:
        scenario = "limited_files"  # the one that any process may play
    prefix = NAMESPACE if scenario != "limited_files" else []
    command = [*prefix, sys.executable, str(SCRIPT), scenario, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
