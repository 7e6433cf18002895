"""The index says what the files say, and comes back from them whatever happens to it."""

from __future__ import annotations

import logging
import sqlite3

import pytest

from kvsync.errors import StoreError
from kvsync.store import Store, StoreLimits, opening
from kvsync.store.index import snapshot
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import VersionError
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey

NO_FLOOR = StoreLimits(free_floor_bytes=0)
KEY = SigningKey(b"\x01" * 32)


@pytest.fixture
def busy_store(store, make_artifact, fill):
    """A store in which something of everything has happened."""
    base = make_artifact(1, 60)
    for artifact in (base, make_artifact(2, 40, head=base.token_ids[:32]), make_artifact(3, 16), make_artifact(4, 5)):
        fill(store, artifact)
    store.remove(make_artifact(3, 16).id)
    store.pin(base.id)
    ref = Ref("name", base.id, 3)
    store.set_ref(ref, ref.seal(KEY), KEY.public)
    store.add_signatures(base.manifest.seal(KEY), {KEY.public})
    with store.pull_draft(*make_artifact(5, 40).parts) as draft:
        draft.put(1, make_artifact(5, 40).chunks[1])
    part = make_artifact(7, 100)
    with store.pull_draft(*part.parts, positions={32, 80}) as draft:
        for index in draft.missing():
            draft.put(index, part.chunks[index])
        draft.publish()
    with store.compute_draft(sha256(b"plan")) as computed:
        for chunk in make_artifact(6, 40).chunks[:4]:
            computed.append(chunk)
        computed.truncate(2)
    return store


def content(store):
    with store._parts.index.reading() as db:
        return snapshot(db)


def test_a_rebuilt_index_equals_the_live_one(busy_store):
    before, usage = content(busy_store), busy_store.usage()
    assert all(before[table] for table in before)
    busy_store.rebuild_index()
    assert content(busy_store) == before
    assert busy_store.usage().bytes == usage.bytes
    assert busy_store.fsck().clean


def test_a_rebuild_keeps_what_drafts_in_use_have_leased(store, make_artifact):
    artifact, computed = make_artifact(1, 40), make_artifact(2, 40)
    with store.pull_draft(*artifact.parts) as draft, store.compute_draft(sha256(b"p"), expected_bytes=9999) as other:
        draft.put(0, artifact.chunks[0])
        other.append(computed.chunks[0])
        before, reserved = content(store), store.usage().reserved_bytes
        store.rebuild_index()
        assert content(store)["leases"] == before["leases"]
        assert content(store)["drafts"] == before["drafts"]
        # What has landed is counted now, and so reserved no more.
        assert store.usage().reserved_bytes <= reserved
        assert store.gc().chunks == 0
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()
    assert store.fsck().clean


def damaged(path, how):
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "garbage":
        path.write_bytes(b"not a database at all" * 400)
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "half":
        path.write_bytes(data[: len(data) // 2])
    elif how == "overwritten":
        path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    else:
        with sqlite3.connect(path) as db:
            db.execute(how)
        db.close()


@pytest.mark.parametrize("how", ["missing", "garbage", "empty", "half", "overwritten"])
def test_a_lost_or_damaged_index_is_rebuilt_at_open_with_a_record(busy_store, root, caplog, how):
    before = content(busy_store)
    names = {stored.artifact for stored in busy_store.artifacts()}
    busy_store.close()
    damaged(root / "index.sqlite", how)
    with caplog.at_level(logging.WARNING, "kvsync.store"), Store.open(root, NO_FLOOR) as again:
        assert content(again) == before
        assert {stored.artifact for stored in again.artifacts()} == names
        assert again.resolve("name") in names
        assert again.fsck().clean
    assert any("from the files" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    "how",
    [
        "DELETE FROM artifact_chunks",
        "DELETE FROM block_keys",
        "UPDATE artifacts SET token_count = 1",
        "UPDATE totals SET bytes = 1",
        "DELETE FROM leases",
    ],
)
def test_an_index_at_odds_with_the_files_is_found_and_rebuilt_by_fsck(busy_store, root, how):
    before = content(busy_store)
    damaged(root / "index.sqlite", how)
    (finding,) = busy_store.fsck().findings
    assert (finding.code, finding.repaired) == ("store.index_stale", True)
    assert content(busy_store) == before
    assert busy_store.fsck().clean


def test_an_index_of_an_older_version_is_rebuilt(busy_store, root):
    before = content(busy_store)
    busy_store.close()
    damaged(root / "index.sqlite", "CREATE TABLE foreign_to_this_version (a)")
    damaged(root / "index.sqlite", "PRAGMA user_version = 99")
    with pytest.raises(VersionError) as refused:
        Store.open(root, NO_FLOOR)
    assert refused.value.code == "version.index"
    opening_version = opening.SCHEMA_VERSION
    damaged(root / "index.sqlite", f"PRAGMA user_version = {opening_version}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opening, "SCHEMA_VERSION", opening_version + 1)
        patch.setattr("kvsync.store.index.SCHEMA_VERSION", opening_version + 1)
        with Store.open(root, NO_FLOOR) as again:
            assert content(again) == before
    with pytest.raises(VersionError):
        Store.open(root, NO_FLOOR)


def test_a_damaged_index_is_not_replaced_under_another_process(busy_store, root, monkeypatch):
    monkeypatch.setattr(opening, "REPLACE_WAIT_S", 0.1)
    damaged(root / "index.sqlite", "PRAGMA wal_checkpoint(TRUNCATE)")  # or the log would hide the damage
    damaged(root / "index.sqlite", "garbage")
    with pytest.raises(StoreError) as refused:
        Store.open(root, NO_FLOOR)
    assert refused.value.code == "store.index_damaged"
    busy_store.close()
    with Store.open(root, NO_FLOOR) as again:
        assert again.fsck().clean


def test_an_index_removed_under_an_open_store_is_noticed(busy_store, root, make_artifact):
    (root / "index.sqlite").unlink()
    with pytest.raises(StoreError) as refused:
        busy_store.pin(make_artifact(1, 60).id)
    assert refused.value.code == "store.index_replaced"


def test_an_artifact_published_without_its_index_rows_is_found_at_the_next_open(busy_store, root, make_artifact):
    before = content(busy_store)
    artifact = make_artifact(1, 60)
    with busy_store._parts.index.writing() as db:
        db.execute("DELETE FROM artifacts WHERE id = ?", (artifact.id.raw,))
    busy_store.close()
    with Store.open(root, NO_FLOOR) as again:
        assert content(again) == before
        assert again.gc().chunks > 0
        assert artifact.id in [stored.artifact for stored in again.artifacts()]
        assert again.fsck().clean


def test_opening_again_and_again_changes_nothing(busy_store, root):
    before = content(busy_store)
    for _ in range(3):
        with Store.open(root, NO_FLOOR) as again:
            assert content(again) == before
