"""Homes with keys, and real daemon processes that never outlive their test."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvsync.config import Home, Settings
from kvsync.daemon import lifecycle
from kvsync.daemon.pidlock import Holder
from kvsync.keys import NodeKeys
from tests.daemon.hosts import SETTINGS, Host


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache directory of these tests' own, for the worker processes too."""
    monkeypatch.setenv("KVSYNC_CACHE", str(cache))


@pytest.fixture
def new_home(tmp_path: Path) -> Callable[..., Home]:
    """(name, settings) -> a home as `kvsync init` leaves it."""

    def make(name: str = "home", settings: Settings | None = None) -> Home:
        home = Home(tmp_path / name)
        home.create()
        NodeKeys.create(home)
        (settings or Settings(free_floor_bytes=0)).save(home)
        return home

    return make


@pytest.fixture
def home(new_home: Callable[..., Home]) -> Home:
    return new_home()


@pytest.fixture
def start() -> Iterator[Callable[[Home], int]]:
    """Start a daemon and return its pid; whatever runs at the end is killed."""
    homes: list[Home] = []

    def run(home: Home) -> int:
        homes.append(home)
        pid = lifecycle.start(home)["pid"]
        assert isinstance(pid, int)
        return pid

    yield run
    for home in homes:
        kill_daemon(home)


def kill_daemon(home: Home) -> None:
    """SIGKILL whoever holds the home's lock, and wait for its end."""
    holder = Holder.find(home.pid_file)
    if holder is not None:
        with closing(holder):
            os.kill(holder.pid, signal.SIGKILL)
            assert holder.wait(30)


@pytest.fixture
def kill() -> Callable[[Home], None]:
    """`kill_daemon`."""
    return kill_daemon


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    """(name, settings) -> a host of this test; daemons that run at the end are killed."""
    made: list[Host] = []

    def make(name: str, settings: Settings = SETTINGS) -> Host:
        made.append(Host.make(tmp_path, name, settings))
        return made[-1]

    yield make
    for each in made:
        kill_daemon(each.home)
