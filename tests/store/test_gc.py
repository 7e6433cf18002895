"""gc, quotas, floor, eviction, holds: what nobody needs goes, what somebody needs never does."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import replace

import pytest

from kvsync.errors import StoreError, UsageError
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey

KEY = SigningKey(b"\x01" * 32)


def tree(root):
    """Every file of a store but the index, by content."""
    files = (path for path in root.rglob("*") if path.is_file() and not path.name.startswith("index.sqlite"))
    return {str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def chunks_on_disk(root):
    return {path.name for path in (root / "chunks").glob("*/*")}


def digests(*artifacts):
    return {sha256(chunk).hex for artifact in artifacts for chunk in artifact.chunks}


def used_at(root, artifact, when):
    os.utime(root / "artifacts" / artifact.id.hex / "tokens", (when, when))


def test_only_chunks_that_nobody_references_go(store, root, make_artifact, fill):
    base = make_artifact(1, 60)
    grown = make_artifact(2, 60, head=base.token_ids[:32])
    fill(store, base)
    fill(store, grown)
    assert store.gc().chunks == 0
    store.remove(base.id)
    report = store.gc()
    gone = digests(base) - digests(grown)
    assert report.chunks == len(gone)
    assert report.bytes == sum(len(c) for c in base.chunks if sha256(c).hex in gone)
    assert chunks_on_disk(root) == digests(grown)
    assert store.fsck().clean


def test_a_dry_run_reports_the_same_and_changes_nothing(root, make_artifact, fill):
    limits = StoreLimits(free_floor_bytes=0, draft_ttl_s=0)
    with Store.open(root, limits) as store:
        kept, dropped = make_artifact(1, 60), make_artifact(2, 60)
        fill(store, kept)
        fill(store, dropped)
        store.remove(dropped.id)
        with store.pull_draft(*make_artifact(3, 40).parts) as draft:
            draft.put(0, make_artifact(3, 40).chunks[0])
        with store.compute_draft(sha256(b"plan")) as computed:
            computed.append(b"some bytes")
        (root / "tmp" / "left-by-the-killed").write_bytes(b"half")
        (root / "quarantine" / "bad").write_bytes(b"bad")
        before, usage = tree(root), replace(store.usage(), free_bytes=0)
        rehearsed = store.gc(dry_run=True)
        assert tree(root) == before
        assert replace(store.usage(), free_bytes=0) == usage
        done = store.gc()
    assert (rehearsed.dry_run, done.dry_run) == (True, False)
    for field in ("chunks", "bytes", "evicted", "drafts", "temp_files", "quarantined"):
        assert getattr(rehearsed, field) == getattr(done, field), field
    assert (done.drafts, done.temp_files, done.quarantined) == (2, 1, 1)
    assert chunks_on_disk(root) == digests(kept)
    assert list((root / "partial").iterdir()) == list((root / "compute").iterdir()) == []


def test_drafts_in_use_and_fresh_ones_keep_their_chunks(store, root, make_artifact):
    left, held = make_artifact(1, 40), make_artifact(2, 40)
    with store.pull_draft(*left.parts) as draft:
        draft.put(0, left.chunks[0])
    with store.pull_draft(*held.parts) as draft:
        draft.put(0, held.chunks[0])
        report = store.gc()
        assert (report.chunks, report.drafts) == (0, 0)
    assert len(chunks_on_disk(root)) == 2


def test_an_expired_draft_goes_only_when_nobody_holds_it(root, make_artifact):
    artifact = make_artifact(1, 40)
    with Store.open(root, StoreLimits(free_floor_bytes=0, draft_ttl_s=0)) as store:
        with store.pull_draft(*artifact.parts) as draft, Store.open(root, StoreLimits(draft_ttl_s=0)) as other:
            draft.put(0, artifact.chunks[0])
            assert other.gc().drafts == 0
        assert store.gc().drafts == 1
        assert chunks_on_disk(root) == set()
        assert store.usage().drafts == 0


def test_a_temporary_file_that_is_being_written_stays(store, root):
    temporary = root / "tmp" / "in-use"
    with temporary.open("wb") as file:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
        assert store.gc().temp_files == 0
        assert temporary.exists()
    assert store.gc().temp_files == 1
    assert not temporary.exists()


def test_over_quota_the_least_recently_used_go_first(root, make_artifact, fill):
    made = [make_artifact(seed, 40) for seed in range(4)]
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        for when, artifact in enumerate(made):
            fill(store, artifact)
            used_at(root, artifact, 1000 + when)
        store.touch(made[0].id)
        each = store.usage().bytes // 4
    with Store.open(root, StoreLimits(quota_bytes=2 * each + each // 2, free_floor_bytes=0)) as store:
        report = store.gc()
        assert report.evicted == (made[1].id, made[2].id)
        assert {stored.artifact for stored in store.artifacts()} == {made[0].id, made[3].id}
        assert chunks_on_disk(root) == digests(made[0], made[3])
        assert store.gc().evicted == ()
        assert store.fsck().clean


def test_pinned_named_and_held_artifacts_are_never_evicted(root, make_artifact, fill):
    pinned, named, held, free = (make_artifact(seed, 40) for seed in range(4))
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        for artifact in (pinned, named, held, free):
            fill(store, artifact)
        store.pin(pinned.id)
        ref = Ref("kept", named.id, 1)
        store.set_ref(ref, ref.seal(KEY), KEY.public)
    with Store.open(root, StoreLimits(quota_bytes=1, free_floor_bytes=0)) as store:
        with store.hold(held.id) as stored:
            assert store.gc().evicted == (free.id,)
            with Store.open(root) as other, pytest.raises(StoreError) as refused:
                other.remove(held.id)
            assert refused.value.code == "store.in_use"
            assert stored.tokens() == held.token_ids
        assert store.gc().evicted == (held.id,)
        store.remove_ref("kept")
        assert store.gc().evicted == (named.id,)
        store.unpin(pinned.id)
        assert store.gc().evicted == (pinned.id,)
        assert chunks_on_disk(root) == set()


def test_a_pull_over_quota_evicts_just_enough_or_nothing(root, make_artifact, fill):
    made = [make_artifact(seed, 40) for seed in range(3)]
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        for when, artifact in enumerate(made):
            fill(store, artifact)
            used_at(root, artifact, 1000 + when)
        room = store.usage().bytes + 600
    with Store.open(root, StoreLimits(quota_bytes=room, free_floor_bytes=0)) as store:
        fresh = make_artifact(9, 40)
        fill(store, fresh)
        assert {s.artifact for s in store.artifacts()} == {made[1].id, made[2].id, fresh.id}
        before = tree(root)
        with pytest.raises(StoreError) as refused:
            store.pull_draft(*make_artifact(10, 400).parts)
        assert refused.value.code == "store.quota"
        assert refused.value.fields["over_bytes"] > 0
        assert tree(root) == before
        assert (store.usage().reserved_bytes, store.usage().drafts) == (0, 0)
        assert store.fsck().clean


def test_a_quota_of_files_counts_files(root, make_artifact, fill):
    with Store.open(root, StoreLimits(quota_files=14, free_floor_bytes=0)) as store:
        fill(store, make_artifact(1, 17))
        assert store.usage().files <= 14
        with pytest.raises(StoreError) as refused:
            store.pull_draft(*make_artifact(2, 200).parts)
        assert refused.value.code == "store.quota"
        assert refused.value.fields["over_files"] > 0


def test_a_computation_stops_at_the_quota_and_goes_on_with_a_larger_one(root, make_artifact):
    artifact = make_artifact(1, 60)
    plan = sha256(b"plan")
    with Store.open(root, StoreLimits(quota_bytes=2500, free_floor_bytes=0)) as store:
        with pytest.raises(StoreError) as early:
            store.compute_draft(plan, expected_bytes=10_000)
        assert early.value.code == "store.quota"
        assert (store.usage().drafts, list((root / "compute").iterdir())) == (0, [])
        done = []
        with store.compute_draft(plan) as draft, pytest.raises(StoreError) as refused:
            done.extend(draft.append(chunk) for chunk in artifact.chunks)
        assert refused.value.code == "store.quota"
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        with store.compute_draft(plan) as draft:
            assert 1 <= len(draft.leaves) < len(artifact.chunks)
            for chunk in artifact.chunks[len(draft.leaves) :]:
                draft.append(chunk)
            draft.publish(*artifact.parts)
        assert store.fsck().clean


def test_open_drafts_of_all_processes_share_one_quota(root, make_artifact):
    one, two = make_artifact(1, 60), make_artifact(2, 60)
    room = sum(map(len, one.chunks)) + 3000
    with (
        Store.open(root, StoreLimits(quota_bytes=room, free_floor_bytes=0)) as first,
        Store.open(root, StoreLimits(quota_bytes=room, free_floor_bytes=0)) as second,
    ):
        with first.pull_draft(*one.parts) as draft:
            assert second.usage().reserved_bytes == sum(map(len, one.chunks))
            draft.put(0, one.chunks[0])
            with pytest.raises(StoreError) as refused:
                second.pull_draft(*two.parts)
            assert refused.value.code == "store.quota"
        assert second.usage().reserved_bytes == 0
        with second.pull_draft(*two.parts) as draft:
            assert draft.missing() == list(range(len(two.chunks)))


def test_the_floor_is_kept_free(root, make_artifact):
    free = os.statvfs(root.parent).f_bavail * os.statvfs(root.parent).f_frsize
    with Store.open(root, StoreLimits(free_floor_bytes=2 * free)) as store:
        with pytest.raises(StoreError) as refused:
            store.pull_draft(*make_artifact(1, 40).parts)
        assert refused.value.code == "store.full"
        with store.compute_draft(sha256(b"plan")) as draft, pytest.raises(StoreError) as late:
            draft.append(b"some bytes")
        assert late.value.code == "store.full"
        assert list((root / "partial").iterdir()) == []


def test_negative_limits_are_refused():
    with pytest.raises(UsageError) as refused:
        StoreLimits(quota_bytes=-1)
    assert refused.value.code == "store.limits"


def test_use_is_recorded(store, root, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    used_at(root, artifact, 1000)
    created = store.artifact(artifact.id).created
    assert store.artifact(artifact.id).last_used == 1000
    started = time.time() - 1  # file times come from a coarser clock
    with store.hold(artifact.id) as held:
        assert held.last_used >= started
    assert store.artifact(artifact.id).created == created


def test_usage_counts_what_is_there(store, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    with store.pull_draft(*make_artifact(2, 40).parts) as draft:
        draft.put(0, make_artifact(2, 40).chunks[0])
        usage = store.usage()
        missing = sum(map(len, make_artifact(2, 40).chunks))
        assert (usage.artifacts, usage.chunks, usage.drafts) == (1, len(artifact.chunks), 1)
        assert (usage.leases, usage.reserved_bytes) == (len(artifact.chunks), missing)
    usage = store.usage()
    assert (usage.chunks, usage.reserved_bytes) == (len(artifact.chunks) + 1, 0)
    assert usage.bytes > sum(map(len, artifact.chunks))
    assert usage.free_bytes > 0


def test_a_draft_that_is_served_is_not_dropped_however_old(root, make_artifact):
    artifact = make_artifact(1, 40)
    with Store.open(root, StoreLimits(free_floor_bytes=0, draft_ttl_s=0)) as store:
        with store.pull_draft(*artifact.parts) as draft:
            draft.put(0, artifact.chunks[0])
            with store.serve(artifact.id) as served:
                draft.close()
                assert store.gc().drafts == 0
                assert served.here() == [0]
        assert store.gc().drafts == 1
        assert chunks_on_disk(root) == set()


def test_what_stands_among_drafts_and_is_none_is_left_to_fsck(store, root, make_artifact):
    for kind in ("partial", "compute"):
        (root / kind / "folder").mkdir(mode=0o700)
        (root / kind / "file").touch(mode=0o600)
    assert store.gc().drafts == 0
    assert {finding.code for finding in store.fsck().findings} == {"store.foreign"}
