"""A real engine on the tiny model, an empty store and a key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.store import Store
from kvsync_protocol.signing import SigningKey
from tests.graft.bench import BLOCK, Bench


@pytest.fixture(scope="session")
def engine(tiny_model_dir: Path) -> Engine:
    return load_engine(tiny_model_dir, threads=1, block_tokens=BLOCK)


@pytest.fixture
def bench(engine: Engine, tmp_path: Path) -> Iterator[Bench]:
    with Store.open(tmp_path / "store") as store:
        yield Bench(engine, store, SigningKey(bytes(range(1, 33))), tmp_path / "store")
