"""A folder in memory where there is one: these tests start many processes that sync many small files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = Path("/dev/shm")
    with tempfile.TemporaryDirectory(
        dir=place if os.access(place, os.W_OK) else tmp_path_factory.mktemp("disk")
    ) as path:
        yield Path(path)
