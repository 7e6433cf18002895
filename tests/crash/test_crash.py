"""SIGKILL of getter, provider and registry, real processes all, at a few of the moments of benchmarks/crash.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.crash_attempt import CALLS, attempt
from benchmarks.crash_world import World

SCENES = len(CALLS)


@pytest.fixture(scope="module")
def world(memory: Path) -> Iterator[World]:
    with World(memory) as made:
        yield made


@pytest.mark.parametrize("seed", [(SCENES + 1) * number for number in range(SCENES)])
def test_whoever_is_killed_nothing_verified_is_lost_and_the_next_transfer_ends_well(world: World, seed: int) -> None:
    assert attempt(world, seed).problems == []
