"""Computing: leaf by leaf, journalled, resumed exactly where the bytes on disk end."""

from __future__ import annotations

import time
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsync.errors import NotFoundError, StoreError, UnavailableError, UsageError
from kvsync.store import journal
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import MAX_CHUNK_BYTES

PLAN = sha256(b"plan")


def table(artifact):
    return list(LeafTable.parse(artifact.leaves).leaves)


def test_appended_chunks_become_an_artifact(store, root, make_artifact):
    artifact = make_artifact(1, 40)
    with store.compute_draft(PLAN) as draft:
        assert [draft.append(chunk) for chunk in artifact.chunks] == table(artifact)
        stored = draft.publish(*artifact.parts)
    assert stored == store.artifact(artifact.id)
    assert stored.tokens() == artifact.token_ids
    assert list((root / "compute").iterdir()) == []
    usage = store.usage()
    assert (usage.drafts, usage.leases, usage.reserved_bytes) == (0, 0, 0)
    assert store.fsck().clean


def test_a_draft_that_was_left_goes_on(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.compute_draft(PLAN) as draft:
        for chunk in artifact.chunks[:3]:
            draft.append(chunk)
    assert store.gc().chunks == 0
    with store.compute_draft(PLAN) as draft:
        assert draft.leaves == table(artifact)[:3]
        for chunk in artifact.chunks[3:]:
            draft.append(chunk)
        draft.publish(*artifact.parts)
    assert store.fsck().clean


def test_truncate_goes_back_and_frees_what_was_dropped(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.compute_draft(PLAN) as draft:
        for chunk in artifact.chunks[:4]:
            draft.append(chunk)
        draft.truncate(2)
        assert draft.leaves == table(artifact)[:2]
        with pytest.raises(UsageError) as refused:
            draft.truncate(3)
        assert refused.value.code == "store.leaf_index"
    assert store.gc().chunks == 2
    with store.compute_draft(PLAN) as draft:
        assert draft.leaves == table(artifact)[:2]


def test_adopt_takes_a_chunk_that_is_here_and_no_other(store, make_artifact):
    short = make_artifact(1, 33)
    long = make_artifact(2, 60, head=short.token_ids[:32])
    with store.compute_draft(sha256(b"another plan")) as draft:
        for chunk in short.chunks:
            draft.append(chunk)
        draft.publish(*short.parts)
    with store.compute_draft(PLAN) as draft:
        for leaf in table(long)[:4]:
            draft.adopt(leaf)
        with pytest.raises(NotFoundError) as refused:
            draft.adopt(table(long)[4])
        assert refused.value.code == "store.unknown_chunk"
        for chunk in long.chunks[4:]:
            draft.append(chunk)
        draft.publish(*long.parts)
    assert store.fsck().clean


def test_an_adopted_chunk_survives_the_removal_of_its_artifact(store, make_artifact):
    short = make_artifact(1, 33)
    with store.compute_draft(sha256(b"another plan")) as draft:
        for chunk in short.chunks:
            draft.append(chunk)
        draft.publish(*short.parts)
    with store.compute_draft(PLAN) as draft:
        draft.adopt(table(short)[0])
        store.remove(short.id)
        assert store.gc().chunks == len(short.chunks) - 1
        assert store.has_chunk(table(short)[0].digest)
        assert draft.leaves == table(short)[:1]


def test_publish_demands_the_journalled_leaves(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.compute_draft(PLAN) as draft:
        for chunk in artifact.chunks[:-1]:
            draft.append(chunk)
        with pytest.raises(StoreError) as refused:
            draft.publish(*artifact.parts)
        assert refused.value.code == "store.incomplete"
    assert store.artifacts() == []


def test_a_chunk_lost_in_a_power_cut_ends_the_journal(store, root, make_artifact):
    artifact = make_artifact(1, 40)
    with store.compute_draft(PLAN) as draft:
        for chunk in artifact.chunks[:5]:
            draft.append(chunk)
    lost = table(artifact)[3].digest.hex
    (root / "chunks" / lost[:2] / lost).unlink()
    with store.compute_draft(PLAN) as draft:
        assert draft.leaves == table(artifact)[:3]


@pytest.mark.parametrize("torn", [b"\n", b"0", b"ab" * 32, b"ab" * 32 + b" 17 00000000\n"])
def test_a_torn_last_line_is_ignored(store, root, make_artifact, torn):
    artifact = make_artifact(1, 40)
    with store.compute_draft(PLAN) as draft:
        for chunk in artifact.chunks[:3]:
            draft.append(chunk)
    file = root / "compute" / PLAN.hex / "journal"
    whole = file.read_bytes()
    file.write_bytes(whole + torn)
    with store.compute_draft(PLAN) as draft:
        assert draft.leaves == table(artifact)[:3]
        draft.append(artifact.chunks[3])
    assert file.read_bytes().startswith(whole)
    with store.compute_draft(PLAN) as draft:
        assert draft.leaves == table(artifact)[:4]


def test_a_journal_of_another_version_is_its_own_error(store, root):
    with store.compute_draft(PLAN):
        pass
    (root / "compute" / PLAN.hex / "journal").write_bytes(b"kvsync-journal 2\n")
    with pytest.raises(StoreError) as refused:
        store.compute_draft(PLAN)
    assert refused.value.code == "store.journal_version"


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.builds(Leaf, st.binary(min_size=32, max_size=32).map(Digest), st.integers(1, MAX_CHUNK_BYTES)), max_size=6
    )
)
def test_a_journal_reads_back_as_written_wherever_it_is_cut(leaves):
    lines = [f"{leaf.digest.hex} {leaf.size}".encode() for leaf in leaves]
    data = b"kvsync-journal 1\n" + b"".join(b"%b %08x\n" % (line, zlib.crc32(line)) for line in lines)
    found, ends = journal.parse(data, "journal")
    assert (found, ends[-1]) == (leaves, len(data))
    for cut in range(len(data)):
        kept, ends = journal.parse(data[:cut], "journal")
        assert kept == leaves[: max(0, len(ends) - 1)]
        assert all(end <= cut for end in ends)


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_journal_or_refused(data):
    if data and not b"kvsync-journal 1\n".startswith(data[:17]):
        with pytest.raises(StoreError) as refused:
            journal.parse(data, "journal")
        assert refused.value.code == "store.journal_version"
    else:
        leaves, ends = journal.parse(data, "journal")
        assert len(ends) == (len(leaves) + 1 if ends else 0)


@pytest.mark.parametrize("size", [0, MAX_CHUNK_BYTES + 1])
def test_a_chunk_of_an_impossible_size_is_refused(store, size):
    with store.compute_draft(PLAN) as draft:
        with pytest.raises(UsageError) as refused:
            draft.append(bytes(size))
        assert refused.value.code == "store.chunk_size"
        assert draft.leaves == []


def test_one_computation_of_a_plan_at_a_time(store):
    with store.compute_draft(PLAN), pytest.raises(UnavailableError) as refused:
        store.compute_draft(PLAN, deadline=time.monotonic() + 0.02)
    assert refused.value.code == "store.busy"


def test_a_draft_that_was_left_takes_nothing_more(store):
    with store.compute_draft(PLAN) as draft:
        pass
    with pytest.raises(UsageError) as refused:
        draft.append(b"late")
    assert refused.value.code == "store.draft_closed"
