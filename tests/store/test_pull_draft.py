"""Pulling: verified on arrival, resumable, one at a time per artifact, visible only when whole."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kvsync.errors import NotFoundError, StoreError, UnavailableError, UsageError
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.signing import SigningKey


def open_descriptors():
    return len(list(Path("/proc/self/fd").iterdir()))


def read_chunk(store, digest):
    with os.fdopen(store.open_chunk(digest), "rb") as file:
        return file.read()


def test_what_was_put_is_what_is_read(store, make_artifact, fill):
    artifact = make_artifact(1, 40)
    stored = fill(store, artifact)
    assert stored == store.artifact(artifact.id)
    assert stored.manifest == artifact.manifest
    assert stored.envelope == artifact.envelope
    assert stored.bytes == sum(map(len, artifact.chunks))
    assert stored.tokens() == artifact.token_ids
    leaves = stored.leaves().leaves
    assert [read_chunk(store, leaf.digest) for leaf in leaves] == artifact.chunks
    assert [s.artifact for s in store.artifacts()] == [artifact.id]


def test_nothing_is_visible_before_publish(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.pull_draft(*artifact.parts) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        assert store.artifacts() == []
        with pytest.raises(NotFoundError) as refused:
            store.artifact(artifact.id)
        assert refused.value.code == "store.unknown_artifact"
        assert draft.publish().artifact == artifact.id


def test_a_draft_that_was_left_misses_only_the_rest(store, make_artifact):
    artifact = make_artifact(1, 60)
    with store.pull_draft(*artifact.parts) as draft:
        assert draft.missing() == list(range(len(artifact.chunks)))
        for index in (0, 3, 4):
            draft.put(index, artifact.chunks[index])
    assert store.artifacts() == []
    with store.pull_draft(*artifact.parts) as draft:
        assert draft.missing() == [i for i in range(len(artifact.chunks)) if i not in (0, 3, 4)]


def test_chunks_of_another_artifact_are_not_missing(store, make_artifact, fill):
    short, long = make_artifact(1, 33), make_artifact(2, 60, head=make_artifact(1, 33).token_ids[:32])
    fill(store, short)
    with store.pull_draft(*long.parts) as draft:
        assert draft.missing() == list(range(4, len(long.chunks)))  # two blocks of two groups are shared


@pytest.mark.parametrize("change", ["flipped", "short", "long", "empty", "another"])
def test_wrong_bytes_are_refused_and_not_stored(store, make_artifact, change):
    artifact = make_artifact(1, 40)
    good = artifact.chunks[0]
    bad = {
        "flipped": bytes([good[0] ^ 1]) + good[1:],
        "short": good[:-1],
        "long": good + b"\0",
        "empty": b"",
        "another": artifact.chunks[1],
    }[change]
    with store.pull_draft(*artifact.parts) as draft:
        with pytest.raises(IntegrityError) as refused:
            draft.put(0, bad)
        assert refused.value.code == "integrity.chunk"
        assert 0 in draft.missing()
    assert not store.has_chunk(sha256(bad))
    assert not store.has_chunk(sha256(good))


def test_wrong_bytes_are_refused_even_when_the_chunk_is_here(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(0, artifact.chunks[0])
        with pytest.raises(IntegrityError):
            draft.put(0, artifact.chunks[1])
        draft.put(0, artifact.chunks[0])
        assert 0 not in draft.missing()


def test_any_buffer_is_taken(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(0, bytearray(artifact.chunks[0]))
        draft.put(1, memoryview(artifact.chunks[1]))
        draft.put(2, np.frombuffer(artifact.chunks[2], dtype=np.uint8))
        draft.put(3, np.frombuffer(artifact.chunks[3], dtype="<f4").reshape(2, -1))
        assert draft.missing() == list(range(4, len(artifact.chunks)))


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


@pytest.mark.parametrize("here", [False, True])
def test_a_chunk_in_pieces_is_judged_as_a_whole(store, root, make_artifact, here):
    artifact = make_artifact(1, 40)
    good = artifact.chunks[0]
    endless = itertools.repeat(b"x" * len(good))
    with store.pull_draft(*artifact.parts) as draft:
        if here:
            draft.put(0, good)
        for wrong in (cut(good, 100)[:-1], cut(good, 100)[::-1], [*cut(good, 100), b"\0"], [], endless):
            with pytest.raises(IntegrityError):
                draft.put_pieces(0, wrong)
            assert (0 in draft.missing()) is not here
        draft.put_pieces(0, [b"", *cut(good, 100)])
        assert 0 not in draft.missing()
    assert read_chunk(store, sha256(good)) == good
    assert list((root / "tmp").iterdir()) == []


def test_a_source_that_fails_between_two_pieces_leaves_nothing(store, root, make_artifact):
    artifact = make_artifact(1, 40)

    def broken() -> Iterator[bytes]:
        yield artifact.chunks[0][:10]
        raise UnavailableError("peer.closed", "gone")

    with store.pull_draft(*artifact.parts) as draft:
        with pytest.raises(UnavailableError):
            draft.put_pieces(0, broken())
        assert 0 in draft.missing()
        assert list((root / "tmp").iterdir()) == []


def test_a_chunk_file_of_the_wrong_size_is_missing_and_replaced(store, root, make_artifact):
    artifact = make_artifact(1, 40)
    digest = sha256(artifact.chunks[0])
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(0, artifact.chunks[0])
        (root / "chunks" / digest.hex[:2] / digest.hex).write_bytes(b"torn")
        assert 0 in draft.missing()
        draft.put(0, artifact.chunks[0])
        assert 0 not in draft.missing()
    assert read_chunk(store, digest) == artifact.chunks[0]


def test_many_threads_may_put_the_same_leaves(store, make_artifact):
    artifact = make_artifact(1, 200, heads=4, dim=32)
    with store.pull_draft(*artifact.parts) as draft:
        wanted = list(range(len(artifact.chunks))) * 3
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda index: draft.put(index, artifact.chunks[index]), wanted))
        assert draft.missing() == []
        draft.publish()
    assert store.fsck().clean
    assert store.usage().chunks == len({sha256(chunk) for chunk in artifact.chunks})


def test_an_incomplete_artifact_is_not_published(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.pull_draft(*artifact.parts) as draft:
        draft.put(0, artifact.chunks[0])
        with pytest.raises(StoreError) as refused:
            draft.publish()
        assert refused.value.code == "store.incomplete"
        assert refused.value.fields["missing"] == len(artifact.chunks) - 1
    assert store.artifacts() == []


def test_pulling_what_is_here_misses_nothing_and_merges_signatures(store, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    other = make_artifact(1, 40, key=SigningKey(b"\x07" * 32))
    assert other.id == artifact.id
    with store.pull_draft(*other.parts) as draft:
        assert draft.missing() == []
        stored = draft.publish()
    both = {artifact.key.public, other.key.public}
    assert set(stored.envelope.signers(both)) == both
    assert store.usage().drafts == 0
    assert store.fsck().clean


def test_a_second_draft_waits_for_the_first_and_misses_nothing(store, make_artifact):
    artifact = make_artifact(1, 40)
    seen: list[list[int]] = []

    def second():
        with store.pull_draft(*artifact.parts) as draft:
            seen.append(draft.missing())

    with store.pull_draft(*artifact.parts) as draft:
        waiting = threading.Thread(target=second)
        waiting.start()
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        assert seen == []
        draft.publish()
    waiting.join(timeout=30)
    assert seen == [[]]
    assert store.usage().drafts == 0


def test_a_second_draft_gives_up_at_its_deadline(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.pull_draft(*artifact.parts), pytest.raises(UnavailableError) as refused:
        store.pull_draft(*artifact.parts, deadline=time.monotonic() + 0.05)
    assert refused.value.code == "store.busy"


def test_parts_that_do_not_belong_together_are_refused(store, root, make_artifact):
    one, two = make_artifact(1, 40), make_artifact(2, 40)
    cases = [
        ((two.envelope, one.manifest, one.leaves, one.tokens), UsageError, "store.envelope"),
        ((one.envelope, one.manifest, two.leaves, one.tokens), IntegrityError, "integrity.leaf_table"),
        ((one.envelope, one.manifest, one.leaves, two.tokens), IntegrityError, "integrity.tokens"),
    ]
    for parts, kind, code in cases:
        with pytest.raises(kind) as refused:
            store.pull_draft(*parts)
        assert refused.value.code == code
    assert list((root / "partial").iterdir()) == []


def test_a_draft_that_was_left_takes_nothing_more(store, make_artifact):
    artifact = make_artifact(1, 40)
    with store.pull_draft(*artifact.parts) as draft:
        with pytest.raises(UsageError) as refused:
            draft.put(len(artifact.chunks), b"x")
        assert refused.value.code == "store.leaf_index"
    for call in (lambda: draft.put(0, artifact.chunks[0]), draft.publish):
        with pytest.raises(UsageError) as refused:
            call()
        assert refused.value.code == "store.draft_closed"


def test_a_repeated_pull_heals_damaged_artifact_files(store, root, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    (root / "artifacts" / artifact.id.hex / "leaves").write_bytes(b"damaged")
    fill(store, artifact)
    assert store.artifact(artifact.id).leaves().encode() == artifact.leaves
    assert store.fsck().clean


def test_files_and_folders_are_private(store, root, make_artifact, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    with store.pull_draft(*make_artifact(2, 40).parts), store.compute_draft(sha256(b"plan")):
        for path in [root, *root.rglob("*")]:
            assert path.stat().st_mode & 0o077 == 0, path


def test_an_unknown_chunk_is_not_found(store):
    with pytest.raises(NotFoundError) as refused:
        store.open_chunk(sha256(b"never seen"))
    assert refused.value.code == "store.unknown_chunk"
    assert not store.has_chunk(sha256(b"never seen"))


def test_descriptors_are_given_back(root, make_artifact, fill):
    before = open_descriptors()
    with Store.open(root, StoreLimits(free_floor_bytes=0)) as store:
        fill(store, make_artifact(1, 40))
        with store.compute_draft(sha256(b"plan")) as draft:
            draft.append(b"some bytes")
        store.fsck()
        store.gc()
    assert open_descriptors() == before


def test_a_draft_ends_once_however_many_threads_end_it(store, make_artifact):
    """A deadline leaves a draft whose thread still publishes; whoever closes a lock twice closes another's file."""
    before = open_descriptors()
    for seed in range(15):
        artifact = make_artifact(seed, 40)
        draft = store.pull_draft(*artifact.parts)
        for index, chunk in enumerate(artifact.chunks):
            draft.put(index, chunk)
        with ThreadPoolExecutor(4) as pool:
            started = threading.Barrier(4)

            def end(call, started=started):
                started.wait()
                call()

            ends = [pool.submit(end, call) for call in (draft.publish, draft.close) * 2]
        refused = [error for each in ends if (error := each.exception()) is not None]
        assert {getattr(error, "code", error) for error in refused} <= {"store.draft_closed"}
        assert 1 <= len(refused) <= 2
    assert open_descriptors() == before
    assert store.fsck().clean
