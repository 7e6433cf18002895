"""Fixtures of the store's tests: a store without a floor, and a child process that works on one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kvsync.store import Store, StoredArtifact, StoreLimits

NO_FLOOR = StoreLimits(free_floor_bytes=0)
CHILD = Path(__file__).with_name("child.py")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: these tests sync many small files."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as path:
        yield Path(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store.open(root, NO_FLOOR) as opened:
        yield opened


@pytest.fixture
def start_child() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `child.py` with a task and arguments; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, arguments)], stdout=subprocess.PIPE, text=True
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.kill()
        child.wait()
        if child.stdout:
            child.stdout.close()


@pytest.fixture
def fill() -> Callable[..., StoredArtifact]:
    """Pull an artifact into a store: fill(store, artifact)."""

    def put_all(store: Store, artifact: Any) -> StoredArtifact:
        with store.pull_draft(*artifact.parts) as draft:
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            return draft.publish()

    return put_all
