"""A short run of benchmarks/soak.py: no claimed byte is lost, nothing is left behind."""

from __future__ import annotations

from pathlib import Path

from benchmarks.soak import measure


def test_random_work_of_four_processes_loses_nothing_and_leaves_nothing(memory: Path) -> None:
    result = measure(memory, 12, processes=4, seed=7, kills=1)
    assert result["problems"] == []
    assert {"verified pinned", "verified held", "verified served", "verified drafted"} <= result["done"].keys()
    assert {"deposit", "pull", "push", "gc", "fsck", "rm", "unpin"} <= result["done"].keys()
