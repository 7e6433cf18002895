"""What a node tells registries of artifacts that it keeps in part: nothing until all of one is here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvsync.config import Home
from kvsync.daemon.holdings import Holdings
from kvsync.keys import NodeKeys, PeerBook, TrustList
from kvsync.store import Store, StoreLimits
from tests.conftest import Artifact


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Store, Holdings]]:
    home = Home(tmp_path / "node")
    home.create()
    keys = NodeKeys.create(home)
    with Store.open(home.store_dir, StoreLimits(free_floor_bytes=0)) as store:
        yield store, Holdings(store, TrustList(home, keys.signer.public), PeerBook(home))


def keep(store: Store, artifact: Artifact, positions: list[int] | None = None) -> None:
    with store.pull_draft(*artifact.parts, positions=positions) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()


def eventually_changed(holdings: Holdings) -> None:
    """After a look that took long there is a rest."""
    deadline = time.monotonic() + 30
    while not holdings.changed():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_artifact_is_announced_once_all_of_it_is_here(
    node: tuple[Store, Holdings], make_artifact: Callable[..., Artifact]
) -> None:
    store, holdings = node
    whole, part = make_artifact(1), make_artifact(2, 100)
    keep(store, whole)
    keep(store, part, [48])
    assert holdings.changed()
    assert {held.stored.artifact for held in holdings.look().held} == {whole.id}
    keep(store, part)
    eventually_changed(holdings)
    assert {held.stored.artifact for held in holdings.look().held} == {whole.id, part.id}
    store.remove(part.id)
    keep(store, part, [48])
    assert {held.stored.artifact for held in holdings.look().held} == {whole.id}
