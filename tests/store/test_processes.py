"""Several processes on one store: one download per artifact, one account of space, no lost chunk."""

from __future__ import annotations

from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256

NO_FLOOR = StoreLimits(free_floor_bytes=0)


def outputs(children):
    return [child.communicate(timeout=120)[0].splitlines() for child in children]


def test_four_processes_download_one_artifact_once(root, start_child, make_artifact):
    said = outputs([start_child("pull", root, 1, 100) for _ in range(4)])
    artifact = make_artifact(1, 100, heads=4, dim=64)
    assert [lines[-1] for lines in said] == ["done"] * 4
    put = sorted(int(text) for lines in said for text in lines if text.isdigit())
    assert put == list(range(len(artifact.chunks)))
    with Store.open(root, NO_FLOOR) as store:
        assert store.artifact(artifact.id).tokens() == artifact.token_ids
        assert store.fsck().clean


def test_four_processes_that_pull_remove_and_collect_lose_nothing(root, start_child, make_artifact):
    said = outputs([start_child("churn", root, seed, 60) for seed in range(4)])
    assert [lines[-1] for lines in said] == ["done"] * 4
    with Store.open(root, NO_FLOOR) as store:
        assert store.fsck().clean
        needed = set()
        for stored in store.artifacts():
            needed |= {leaf.digest.hex for leaf in stored.leaves().leaves}
        store.gc()
        assert {path.name for path in (root / "chunks").glob("*/*")} == needed
        usage = store.usage()
        assert (usage.chunks, usage.drafts, usage.leases, usage.reserved_bytes) == (len(needed), 0, 0, 0)


def test_four_processes_open_a_store_whose_index_is_garbage(root, start_child, make_artifact, fill):
    kept = make_artifact(9, 40)
    with Store.open(root, NO_FLOOR) as store:
        fill(store, kept)
    (root / "index.sqlite").write_bytes(b"garbage" * 1000)
    said = outputs([start_child("pull", root, seed, 40) for seed in range(4)])
    assert [lines[-1] for lines in said] == ["done"] * 4
    with Store.open(root, NO_FLOOR) as store:
        assert len(store.artifacts()) == 5
        assert store.artifact(kept.id).tokens() == kept.token_ids
        assert all(store.has_chunk(sha256(chunk)) for chunk in kept.chunks)
        assert store.fsck().clean
