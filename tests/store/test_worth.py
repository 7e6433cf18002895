"""What goes first when a store is over its quota: by seconds of prefill per byte, and by how long it was not used."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.store import Store, StoreLimits
from kvsync.store.extent import Extent, last_position
from kvsync.store.worth import by_profit, effort, read_cost, whole_cost
from kvsync_protocol.digest import sha256
from kvsync_protocol.ref import Ref
from tests.conftest import SIGNER, build_artifact, fingerprints

NOW = 1_700_000_000.0
DAY = 86_400


def compute(store, artifact, seconds):
    with store.compute_draft(sha256(artifact.tokens)) as draft:
        for chunk in artifact.chunks:
            draft.append(chunk)
        return draft.publish(*artifact.parts, cost_s=seconds)


def used(root, artifact, ago):
    at = NOW - ago
    os.utime(root / "artifacts" / artifact.id.hex / "tokens", (at, at))


def order(store, *artifacts):
    """Places of `artifacts` in the order in which they would go."""
    with store._parts.index.reading() as db:
        ranked = by_profit(db, store._parts.files, [a.id for a in artifacts], NOW)
    return [[a.id for a in artifacts].index(artifact) for artifact in ranked]


def test_of_equal_cost_the_least_recently_used_goes_first(store, root, fill):
    made = [build_artifact(seed) for seed in range(3)]
    for artifact, ago in zip(made, (5, 500, 50), strict=True):
        fill(store, artifact)
        used(root, artifact, ago)
    assert order(store, *made) == [1, 2, 0]


def test_of_equal_age_what_is_cheap_to_compute_again_goes_first(store, root):
    made = [build_artifact(seed) for seed in range(3)]
    for artifact, seconds in zip(made, (30.0, 0.5, 4.0), strict=True):
        compute(store, artifact, seconds)
        used(root, artifact, DAY)
    assert order(store, *made) == [1, 2, 0]


def test_cost_and_age_weigh_as_their_quotient(store, root):
    """Twice as dear for its bytes stays twice as long."""
    cheap, dear = build_artifact(0), build_artifact(1)
    compute(store, cheap, 1.0)
    compute(store, dear, 2.0)
    used(root, cheap, DAY)
    for ago, first in ((1.9 * DAY, 0), (2.1 * DAY, 1)):
        used(root, dear, ago)
        assert order(store, cheap, dear)[0] == first


def test_for_its_bytes_a_long_document_is_dearer_than_a_short_one(store, root, fill):
    """Nobody has measured: attention makes every further token dearer."""
    short, long = build_artifact(0, 160, block_tokens=16), build_artifact(1, 1600, block_tokens=16)
    for artifact in (long, short):
        fill(store, artifact)
        used(root, artifact, DAY)
    per_byte = [effort(a.manifest.tokens.count) / a.manifest.tree.total_bytes for a in (short, long)]
    assert order(store, short, long) == ([0, 1] if per_byte[0] < per_byte[1] else [1, 0])
    assert effort(2 * 8192) / (2 * 8192) > effort(8192) / 8192


def test_what_was_not_measured_is_estimated_at_the_pace_of_its_own_model(store, root, fill):
    """A slow model's artifacts stay before those of a fast one, though only one of each was computed here."""
    slow, fast = fingerprints("slow"), fingerprints("fast")
    measured = [build_artifact(0, prints=slow), build_artifact(1, prints=fast)]
    compute(store, measured[0], 100.0)
    compute(store, measured[1], 0.1)
    pulled = [build_artifact(2, prints=slow), build_artifact(3, prints=fast)]
    for artifact in pulled:
        fill(store, artifact)
    for artifact in (*measured, *pulled):
        used(root, artifact, DAY)
    ranked = order(store, *measured, *pulled)
    assert set(ranked[:2]) == {1, 3}
    assert set(ranked[2:]) == {0, 2}


def test_gc_evicts_in_that_order_and_never_what_is_pinned_named_held_or_leased(root, fill):
    made = [build_artifact(seed, 60) for seed in range(7)]
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        for number, artifact in enumerate(made):
            compute(store, artifact, 10.0**-number)
            used(root, artifact, DAY)
    arriving = build_artifact(9, 60)
    with Store.open(root, StoreLimits(quota_bytes=1, free_floor_bytes=0)) as store, ExitStack() as stack:
        pinned, named, held = made[6], made[5], made[4]
        store.pin(pinned.id)
        ref = Ref("a/name", named.id, 1)
        store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)
        stack.enter_context(store.hold(held.id))
        for artifact in made:
            if artifact is not held:
                used(root, artifact, DAY)
        used_now = time.time() - DAY
        os.utime(root / "artifacts" / held.id.hex / "tokens", (used_now, used_now))
        rehearsed = store.gc(dry_run=True).evicted
        assert store.gc().evicted == rehearsed == tuple(made[n].id for n in (3, 2, 1, 0))
        assert {s.artifact for s in store.artifacts()} == {pinned.id, named.id, held.id}
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        draft = stack.enter_context(store.pull_draft(*arriving.parts))
        draft.put(0, arriving.chunks[0])
        with Store.open(root, StoreLimits(quota_bytes=1, free_floor_bytes=0)) as small:
            small.gc()
            assert small.has_chunk(arriving.manifest.check_leaves(arriving.leaves).leaves[0].digest)
        draft.close()
        assert store.fsck().clean


def test_a_draft_that_needs_room_takes_that_of_what_is_worth_least(root, fill):
    made = [build_artifact(seed, 60) for seed in range(3)]
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        for artifact, seconds in zip(made, (5.0, 0.01, 5.0), strict=True):
            compute(store, artifact, seconds)
            used(root, artifact, DAY)
        quota = store.usage().bytes + 1000
    new = build_artifact(3, 60)
    with Store.open(root, StoreLimits(quota_bytes=quota, free_floor_bytes=0)) as store:
        fill(store, new)
        assert {s.artifact for s in store.artifacts()} == {made[0].id, made[2].id, new.id}


def test_costs_survive_the_loss_of_the_index_which_follows_from_the_files(store, root):
    artifact = build_artifact(0)
    compute(store, artifact, 12.5)
    assert read_cost(store._parts.files, artifact.id) == 12.5
    assert store.fsck().clean
    usage = store.usage()
    store.rebuild_index()
    assert (usage.bytes, usage.files) == (store.usage().bytes, store.usage().files)
    compute(store, artifact, 20.0)
    assert read_cost(store._parts.files, artifact.id) == 20.0
    assert store.fsck().clean


@pytest.mark.parametrize(
    "said", [b"", b"{}", b'{"prefill_us":0}', b'{"prefill_us":1.5}', b'{"prefill_us":1,"x":2}', b"\xff" * 9000]
)
def test_a_damaged_note_costs_an_estimate_and_nothing_else(store, root, said):
    artifact = build_artifact(0)
    compute(store, artifact, 3.0)
    (root / "artifacts" / artifact.id.hex / "cost").write_bytes(said)
    assert read_cost(store._parts.files, artifact.id) is None
    assert order(store, artifact) == [0]
    assert store.whole(artifact.id) is not None


@given(st.floats(0.001, 1e6), st.integers(0, 5000), st.integers(1, 100_000))
def test_a_computation_that_went_on_from_shared_blocks_counts_as_if_it_had_done_them(seconds, start, more):
    found = whole_cost(seconds, start, start + more)
    assert found >= seconds * 0.999999
    assert whole_cost(seconds, 0, more) == pytest.approx(seconds)


def test_the_last_place_of_a_part_is_read_without_its_layout():
    layout = build_artifact(0, 100).manifest.layout
    extent = Extent.of(layout, [32, 64])
    assert extent is not None
    assert last_position(extent.encode()) == 64
