"""Stores of every kind, one PostgreSQL server for all tests here, and a registry with a clock of its own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import postgres
from kvsync_registry.memory import MemoryRegistryStore
from kvsync_registry.postgres import PostgresRegistryStore
from kvsync_registry.sqlite import SqliteRegistryStore
from kvsync_registry.store import RegistryStore
from tests.registry.world import World

KINDS = ("memory", "sqlite", "postgres")
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def cluster() -> Iterator[postgres.Cluster]:
    """Fails, and says why, where there is no PostgreSQL and none can be installed."""
    with postgres.cluster(settings={"fsync": "off"}) as found:
        yield found


@pytest.fixture
def database(cluster: postgres.Cluster) -> str:
    """The url of an empty database."""
    return cluster.create(f"test{next(_numbers)}")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RegistryStore]:
    opened: RegistryStore
    match request.param:
        case "memory":
            opened = MemoryRegistryStore()
        case "sqlite":
            opened = SqliteRegistryStore(tmp_path / "registry.sqlite")
        case _:
            opened = PostgresRegistryStore(request.getfixturevalue("database"))
    yield opened
    opened.close()


@pytest.fixture
def world(store: RegistryStore) -> World:
    return World(store)
