"""Artifacts kept in part: what a draft for positions misses, publishes and merges, and what the rest makes of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.store import Store, StoreLimits
from kvsync.store.extent import Extent
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.layout import DType, Group, LayerKind, Layout, StateGroup, StatePart
from kvsync_protocol.prefix import block_keys, start_key

TOKENS = 100  # six full blocks of 16 and a partial one; windows of 24
NO_FLOOR = StoreLimits(free_floor_bytes=0)
FULL = Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.F32)
SLIDING = Group("sliding", LayerKind.SLIDING, (1,), 1, 4, 4, DType.F32, window=11)
STATES = StateGroup("states", (2,), (StatePart("s", (3,), DType.F32),), 2)
ROWS = [(FULL,), (FULL, SLIDING), (FULL, SLIDING, STATES)]


@st.composite
def layouts(draw):
    groups = draw(st.sampled_from(ROWS))
    return Layout(draw(st.integers(1, 60)), draw(st.sampled_from([1, 4, 7])), groups, 5, DType.F32)


def places(layout):
    return [p for p in range(1, layout.tokens + 1) if layout.restorable(p) == p]


def needed(layout, positions):
    """What the layout itself says, position by position."""
    spans = [layout.chunks_for_graft(p, logits=p == layout.tokens) for p in positions]
    return {span.index for part in spans for span in part}


@given(layouts(), st.data())
def test_an_extent_is_the_chunks_of_its_positions_and_covers_what_they_allow(layout, data):
    positions = tuple(sorted(data.draw(st.sets(st.sampled_from(places(layout)), min_size=1, max_size=4))))
    extent = Extent(layout, positions)
    kept = needed(layout, positions)
    assert [span.index for span in extent.spans()] == sorted(kept)
    sizes = {span.index: span.size for span in layout.chunks()}
    assert extent.bytes == sum(sizes[index] for index in kept)
    covered = {p for p in places(layout) if needed(layout, [p]) <= kept}
    assert {p for p in range(layout.tokens + 9) if extent.covers(p)} == covered
    for asked in range(layout.tokens + 9):
        assert extent.restorable(asked) == max((p for p in covered if p <= asked), default=0)
    assert Extent.parse(extent.encode(), layout) == extent
    assert (Extent.of(layout, positions) is None) == (len(kept) == layout.leaf_count)
    more = tuple(sorted(data.draw(st.sets(st.sampled_from(places(layout)), min_size=1, max_size=4))))
    merged = extent.merged(Extent(layout, more))
    assert needed(layout, {*positions, *more}) == (
        set(range(layout.leaf_count)) if merged is None else {span.index for span in merged.spans()}
    )


@given(layouts(), st.binary() | st.text().map(str.encode))
def test_an_extent_is_read_from_its_own_form_only(layout, junk):
    try:
        extent = Extent.parse(junk, layout)
    except ProtocolError:
        return
    assert Extent.parse(extent.encode(), layout) == extent


@pytest.mark.parametrize(
    "text",
    [
        *('{"positions":[]}', '{"positions":[5]}', '{"positions":[8,4]}', '{"positions":[4,4]}', '{"positions":[0]}'),
        *('{"positions":[61]}', '{"positions":[4],"all":true}', "{}", '{"positions":[true]}', '{"positions":{}}'),
    ],
)
def test_positions_where_no_graft_begins_are_no_extent(text):
    with pytest.raises(MalformedError):
        Extent.parse(text.encode(), Layout(60, 4, (FULL,), 5, DType.F32))


def keep(store, artifact, *positions):
    with store.pull_draft(*artifact.parts, positions=positions or None) as draft:
        missing = draft.missing()
        for index in missing:
            draft.put(index, artifact.chunks[index])
        return missing, draft.publish()


def test_a_draft_for_positions_misses_what_grafts_there_need_and_publishes_that(store, make_artifact):
    artifact = make_artifact(1, TOKENS)
    layout = artifact.manifest.layout
    missing, stored = keep(store, artifact, 48)
    assert set(missing) == needed(layout, [48])
    assert (stored.extent.positions, stored.bytes) == ((48,), sum(len(artifact.chunks[i]) for i in missing))
    assert [stored.restorable(p) for p in (15, 16, 47, 48, 100)] == [0, 0, 0, 48, 48]
    assert store.whole(artifact.id) == stored
    assert store.fsck().clean
    usage = store.usage()
    assert (usage.artifacts, usage.partial, usage.drafts, usage.leases, usage.chunks) == (1, 1, 0, 0, len(missing))
    with store.serve(artifact.id) as served, store.serve(artifact.id) as again:
        assert again.table is served.table
        assert served.here() == sorted(missing)
        assert served.leaf(len(artifact.chunks) - 1) is None


def test_parts_add_up_and_a_full_pull_ends_them(store, make_artifact, root):
    artifact = make_artifact(1, TOKENS)
    layout = artifact.manifest.layout
    keep(store, artifact, 32)
    missing, stored = keep(store, artifact, 80, TOKENS)
    assert set(missing) == needed(layout, [80, TOKENS]) - needed(layout, [32])
    assert stored.extent.positions == (32, 80, TOKENS)
    again, stored = keep(store, artifact, 32)
    assert (again, stored.extent.positions) == ([], (32, 80, TOKENS))
    rest, stored = keep(store, artifact)
    assert set(rest) == set(range(layout.leaf_count)) - needed(layout, [32, 80, TOKENS])
    assert (stored.extent, stored.bytes) == (None, layout.total_bytes)
    assert not (root / "artifacts" / artifact.id.hex / "extent").exists()
    _, stored = keep(store, artifact, 16)
    assert stored.extent is None
    assert store.usage().partial == 0
    assert store.fsck().clean


def test_positions_where_no_graft_can_begin_open_no_draft(store, make_artifact):
    artifact = make_artifact(1, TOKENS)
    for positions in ((), (15,), (101,), (0,)):
        with pytest.raises(UsageError) as refused:
            store.pull_draft(*artifact.parts, positions=positions)
        assert refused.value.code == "store.extent"
    assert store.usage().drafts == 0


def test_a_draft_reserves_its_own_bytes_and_no_more(root, make_artifact):
    artifact = make_artifact(1, TOKENS, heads=4, dim=64)
    layout = artifact.manifest.layout
    part = sum(len(artifact.chunks[i]) for i in needed(layout, [16]))
    with Store.open(root, StoreLimits(free_floor_bytes=0, quota_bytes=part + 8192)) as store:
        with store.pull_draft(*artifact.parts, positions=[16]) as draft:
            assert store.usage().reserved_bytes == part
            draft.put(0, artifact.chunks[0])
        with pytest.raises(StoreError) as refused:
            store.pull_draft(*artifact.parts)
        assert refused.value.code == "store.quota"
        _, stored = keep(store, artifact, 16)
        assert stored.extent.positions == (16,)


def test_a_smaller_draft_after_a_larger_one_reserves_only_its_own(store, make_artifact):
    artifact = make_artifact(1, TOKENS)
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(9, artifact.chunks[9])
    with store.pull_draft(*artifact.parts, positions=[16]) as draft:
        wanted = sum(len(artifact.chunks[i]) for i in draft.missing())
        assert store.usage().reserved_bytes == wanted
        store.gc()
        assert store.has_chunk(sha256(artifact.chunks[9]))


def test_gc_keeps_every_chunk_of_an_artifact_that_is_here(store, make_artifact):
    artifact = make_artifact(1, TOKENS)
    keep(store, artifact, 48)
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(len(artifact.chunks) - 1, artifact.chunks[-1])
    missing, _ = keep(store, artifact, 16)
    assert store.gc().chunks == 0
    assert store.has_chunk(sha256(artifact.chunks[-1]))
    assert missing
    store.remove(artifact.id)
    store.gc()
    assert store.usage().chunks == 0


def test_fsck_expects_the_extents_chunks_and_repairs_only_those(store, make_artifact, root):
    artifact = make_artifact(1, TOKENS)
    missing, _ = keep(store, artifact, 48)
    digest = sha256(artifact.chunks[missing[1]])
    (root / "chunks" / digest.hex[:2] / digest.hex).unlink()
    asked = []

    class Source:
        def fetch(self, owner, index, leaf):
            asked.append((owner, index))
            return artifact.chunks[index]

    assert store.whole(artifact.id) is None
    report = store.fsck()
    assert next((f.code, f.artifacts) for f in report.findings) == ("store.missing_chunk", (artifact.id,))
    assert store.fsck(repair=Source()).sound
    assert asked == [(artifact.id, missing[1])]
    assert store.fsck().clean


def test_a_damaged_extent_takes_the_artifact_out_of_service(store, make_artifact, root):
    artifact = make_artifact(1, TOKENS)
    keep(store, artifact, 48)
    (root / "artifacts" / artifact.id.hex / "extent").write_bytes(b'{"positions":[47]}')
    assert store.artifacts() == []
    report = store.fsck()
    assert [f.code for f in report.findings if f.artifacts] == ["extent.range"]
    with pytest.raises(NotFoundError):
        store.artifact(artifact.id)
    missing, _ = keep(store, artifact, 48)
    assert missing == []
    assert store.fsck().clean


def keys(artifact, tokens=None):
    pair = artifact.manifest.fingerprints
    return list(block_keys(start_key(pair), tokens or artifact.token_ids, artifact.manifest.schedule))


def test_matching_goes_by_what_is_here(store, make_artifact, fill):
    artifact = make_artifact(1, TOKENS)
    keep(store, artifact, 48, 80)
    own = keys(artifact)
    found = [store.find_prefix(own[:n]) for n in range(1, 7)]
    assert found == [None, None, (artifact.id, 3), (artifact.id, 4), (artifact.id, 5), (artifact.id, 5)]
    assert store.find_whole(artifact.token_ids, artifact.manifest.fingerprints) is None
    assert store.find_prefixes(own, partial=False) == []
    short = make_artifact(2, 60, head=artifact.token_ids[:48])
    fill(store, short)
    assert store.find_prefix(own[:2]) == (short.id, 2)
    assert store.find_prefix(own) == (artifact.id, 5)
    keep(store, artifact, TOKENS)
    assert store.find_whole(artifact.token_ids, artifact.manifest.fingerprints) == artifact.id
    keep(store, artifact)
    assert store.find_prefix(own) == (artifact.id, 6)


def test_a_part_is_found_among_very_many_keys(store, make_artifact):
    artifact = make_artifact(1, 4200, block_tokens=4)
    keep(store, artifact, 4, 4096)
    own = keys(artifact)
    assert store.find_prefix(own) == (artifact.id, 1024)
    assert store.find_prefix(own[:1023]) == (artifact.id, 1)


def test_an_index_that_lags_behind_the_extents_follows_them_at_the_next_open(root, make_artifact):
    """As after a power cut, which may take the index's last commits and leave the files."""
    artifact = make_artifact(1, TOKENS)
    own, index = keys(artifact), root / "index.sqlite"
    with Store.open(root, NO_FLOOR) as store:
        keep(store, artifact, 32)
    early = index.read_bytes()
    with Store.open(root, NO_FLOOR) as store:
        keep(store, artifact, 64)
    late = index.read_bytes()
    with Store.open(root, NO_FLOOR) as store:
        keep(store, artifact)
    for stale in (early, late):
        index.write_bytes(stale)
        with Store.open(root, NO_FLOOR) as store:
            assert store.find_prefix(own) == (artifact.id, 6)
            assert store.fsck().clean


def test_what_is_still_arriving_is_served_chunk_by_verified_chunk(store, make_artifact):
    artifact = make_artifact(1, TOKENS)
    with pytest.raises(NotFoundError), store.serve(artifact.id):
        pass
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(3, artifact.chunks[3])
        with store.serve(artifact.id) as served:
            assert served.here() == [3]
            draft.put(1, artifact.chunks[1])
            assert served.here() == [1, 3]
            assert served.leaf(3).digest == sha256(artifact.chunks[3])
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            draft.publish()
            with pytest.raises(StoreError) as refused:
                store.remove(artifact.id)
            assert refused.value.code == "store.in_use"
    store.remove(artifact.id)


def test_random_parts_and_removals_leave_exactly_what_they_say(store, make_artifact):
    rng, artifact = random.Random(4), make_artifact(1, TOKENS)
    layout, held = artifact.manifest.layout, None
    here = set()
    for _ in range(40):
        match rng.randrange(4):
            case 0 if held is not None:
                store.remove(artifact.id)
                store.gc()
                held, here = None, set()
            case 1:
                keep(store, artifact, TOKENS)
                held = {*(held or ()), TOKENS}
            case _:
                position = rng.choice(places(layout)[:-1])
                keep(store, artifact, position)
                held = {*(held or ()), position}
        if held is not None:
            here |= needed(layout, held)
            stored = store.artifact(artifact.id)
            assert held == set(stored.extent.positions if stored.extent else held)
            assert (stored.extent is None) == (len(needed(layout, held)) == layout.leaf_count)
        assert store.usage().chunks == len(here)
    assert store.fsck().clean
