"""Lists come from the index and follow the files; an open looks at every artifact only when some came or went."""

from __future__ import annotations

import os
import sys
import time

import pytest

from kvsync.errors import NotFoundError
from kvsync.store import Store, StoreLimits, listing, reconcile
from kvsync_protocol.signing import SigningKey

NO_FLOOR = StoreLimits(free_floor_bytes=0)


@pytest.fixture(autouse=True)
def many(monkeypatch):
    """The few artifacts of these tests count as many."""
    monkeypatch.setattr(listing, "FEW", 1)
    monkeypatch.setattr(reconcile, "FEW", 1)


@pytest.fixture
def opened_files():
    """Counts the files and folders that this process opens, by what is run."""
    counting: list[list[str]] = []

    def hook(event, arguments):
        if event == "open" and counting:
            counting[-1].append(str(arguments[0]))

    sys.addaudithook(hook)  # stays until the process ends; it does nothing outside `count`

    def count(function):
        counting.append([])
        try:
            function()
            return len(counting[-1])
        finally:
            counting.clear()

    return count


def shown(store, keys):
    return {
        (one.artifact, one.tokens, one.bytes, one.partial, one.pinned, one.signers) for one in store.listing(keys)
    }


def settle(root):
    """Let some time pass, as the file system sees it, since the last artifact came."""
    then = time.time() - 60
    os.utime(root / "artifacts", (then, then))


def test_a_list_says_what_the_artifacts_say(store, fill, make_artifact):
    ours, stranger = SigningKey(bytes([1]) * 32), SigningKey(bytes([2]) * 32)
    for seed, key in ((1, ours), (2, stranger), (3, ours)):
        fill(store, make_artifact(seed, key=key))
    store.pin(make_artifact(3, key=ours).id)
    for keys in ([ours.public], [stranger.public], [ours.public, stranger.public], []):
        expected = {
            (
                *(a.artifact, a.manifest.tokens.count, a.bytes, a.extent is not None, a.pinned),
                len(a.envelope.signers(keys)),
            )
            for a in store.artifacts()
        }
        assert shown(store, keys) == shown(store, keys) == expected
    assert [one.artifact for one in store.listing([])] == [one.artifact for one in store.artifacts()]


def test_a_list_follows_signatures_removals_and_damage(store, root, fill, make_artifact):
    ours, other = SigningKey(bytes([1]) * 32), SigningKey(bytes([2]) * 32)
    first, second = make_artifact(1, key=ours), make_artifact(2, key=ours)
    for artifact in (first, second):
        fill(store, artifact)
    keys = [ours.public, other.public]
    assert {one.signers for one in store.listing(keys)} == {1}
    store.add_signatures(make_artifact(1, key=other).parts[0], keys)
    assert {one.artifact: one.signers for one in store.listing(keys)} == {first.id: 2, second.id: 1}
    store.remove(second.id)
    assert [one.artifact for one in store.listing(keys)] == [first.id]
    (root / "artifacts" / first.id.hex / "envelope.json").write_bytes(b"{}")
    assert store.listing(keys) == []


def test_the_files_that_a_list_opens_do_not_grow_with_the_artifacts(store, fill, make_artifact, opened_files):
    found = {}
    for seed in range(12):
        fill(store, make_artifact(seed))
        if seed in (1, 11):
            store.listing([])  # the first one reads what is new
            found[seed] = opened_files(lambda: store.listing([]))
    assert found[1] == found[11]
    assert opened_files(lambda: store.artifacts()) > 12  # what is counted is what is meant


def test_the_files_that_an_open_opens_do_not_grow_with_the_artifacts(root, fill, make_artifact, opened_files):
    found = {}
    for seed in range(12):
        with Store.open(root, NO_FLOOR) as store:
            fill(store, make_artifact(seed))
        if seed in (1, 11):
            settle(root)
            Store.open(root, NO_FLOOR).close()
            found[seed] = opened_files(lambda: Store.open(root, NO_FLOOR).close())
    assert found[1] == found[11]


def test_an_open_finds_what_came_and_went_behind_the_index(root, fill, make_artifact):
    kept, gone = make_artifact(1), make_artifact(2)
    with Store.open(root, NO_FLOOR) as store:
        for artifact in (kept, gone):
            fill(store, artifact)
    settle(root)
    Store.open(root, NO_FLOOR).close()  # has looked, and remembers that it has
    away = root.parent / "away"
    (root / "artifacts" / gone.id.hex).rename(away)
    with Store.open(root, NO_FLOOR) as store:
        with pytest.raises(NotFoundError):
            store.artifact(gone.id)
        assert list(store.kept()) == [kept.id]
    settle(root)
    Store.open(root, NO_FLOOR).close()
    away.rename(root / "artifacts" / gone.id.hex)
    with Store.open(root, NO_FLOOR) as store:
        assert set(store.kept()) == {kept.id, gone.id}


def test_an_open_just_after_a_change_is_not_remembered(root, fill, make_artifact):
    """Within one tick of the file system's clock a second change would not show."""
    with Store.open(root, NO_FLOOR) as store:
        fill(store, make_artifact(1))
    with Store.open(root, NO_FLOOR) as store:
        fill(store, make_artifact(2))
    before = (root / "artifacts").stat()
    Store.open(root, NO_FLOOR).close()
    away = root.parent / "away"
    (root / "artifacts" / make_artifact(2).id.hex).rename(away)
    os.utime(root / "artifacts", ns=(before.st_atime_ns, before.st_mtime_ns))  # as if within the same tick
    with Store.open(root, NO_FLOOR) as store:
        assert list(store.kept()) == [make_artifact(1).id]


def test_a_list_of_few_leaves_the_index_alone(root, fill, make_artifact, monkeypatch):
    monkeypatch.setattr(listing, "FEW", 16)
    monkeypatch.setattr(reconcile, "FEW", 256)
    with Store.open(root, NO_FLOOR) as store:
        fill(store, make_artifact(1))
    settle(root)
    before = (root / "index.sqlite").read_bytes()
    with Store.open(root, NO_FLOOR) as store:
        assert len(store.listing([])) == 1
    assert (root / "index.sqlite").read_bytes() == before
