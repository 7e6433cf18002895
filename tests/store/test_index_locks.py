"""SQLite's locks hold while a store is open: whoever else closes it leaves the log in which this process writes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kvsync.store import Store, StoreLimits

NO_FLOOR = StoreLimits(free_floor_bytes=0)
LOOK = """
import sys
from pathlib import Path
from kvsync.store import Store, StoreLimits
with Store.open(Path(sys.argv[1]), StoreLimits(free_floor_bytes=0)) as store:
    print(len(store.artifacts()))
"""


def look(root):
    """How many artifacts another process finds, which closes the store again."""
    done = subprocess.run([sys.executable, "-c", LOOK, str(root)], capture_output=True, text=True, check=True)
    return int(done.stdout)


def log_inode(root):
    return (root / "index.sqlite-wal").stat().st_ino


@pytest.mark.parametrize("opened", [1, 2])
def test_a_process_that_closes_the_store_takes_no_log_from_one_that_has_it_open(root, make_artifact, fill, opened):
    stores = [Store.open(root, NO_FLOOR) for _ in range(opened)]
    try:
        for seed in range(3):
            fill(stores[0], make_artifact(seed, 20))
            before = log_inode(root)
            assert look(root) == seed + 1
            assert log_inode(root) == before
    finally:
        for store in stores:
            store.close()


def test_a_second_store_of_one_process_that_is_closed_leaves_the_first_ones_locks(root, make_artifact, fill):
    with Store.open(root, NO_FLOOR) as store:
        Store.open(root, NO_FLOOR).close()
        fill(store, make_artifact(1, 20))
        before = log_inode(root)
        assert look(root) == 1
        assert log_inode(root) == before
        assert store.fsck().clean
        assert log_inode(root) == before
