"""SIGKILL at many moments: nothing verified is lost, nothing unverified is visible, fsck is clean."""

from __future__ import annotations

import random
import signal
import time

import pytest

from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import Digest, sha256

NO_FLOOR = StoreLimits(free_floor_bytes=0)
TOKENS = 200  # 12 full blocks and a partial one, two groups each, and the logits: 27 chunks
PLAN = sha256(b"the plan")
THREADS = 3


def killed_after(child, lines, pause):
    """Let the child say so many lines, wait a little, kill it; what it has said after "writing"."""
    said = []
    for _ in range(lines):
        line = child.stdout.readline()
        if not line:
            break
        said.append(line.strip())
    time.sleep(pause)
    child.kill()
    child.wait()
    said += child.stdout.read().splitlines()
    return [text for text in said if text.isdigit()]


def check_chunk_files(root):
    """Every visible chunk is whole: hashed here, not by the store."""
    found = {}
    for path in (root / "chunks").glob("*/*"):
        assert sha256(path.read_bytes()) == Digest.parse(path.name), path
        found[path.name] = path
    return found


def moments(count, steps):
    rng = random.Random(20_260)
    return [(rng.randrange(1, steps), rng.random() * 0.004) for _ in range(count)]


@pytest.mark.parametrize(("lines", "pause"), moments(9, 26))
def test_a_killed_pull_keeps_every_chunk_it_had_verified(root, start_child, make_artifact, lines, pause):
    artifact = make_artifact(1, TOKENS, heads=4, dim=64)
    said = killed_after(start_child("pull", root, 1, TOKENS), lines, pause)
    files = check_chunk_files(root)
    with Store.open(root, NO_FLOOR) as store:
        assert store.fsck().clean
        whole = artifact.id in [stored.artifact for stored in store.artifacts()]
        with store.pull_draft(*artifact.parts) as draft:
            missing = draft.missing()
            assert not {int(index) for index in said} & set(missing)
            assert len(artifact.chunks) - len(missing) == len(files)
            assert not (whole and missing)
            for index in missing:
                draft.put(index, artifact.chunks[index])
            draft.publish()
        assert store.gc().temp_files <= THREADS
        assert store.fsck().clean
        assert store.usage().drafts == 0
    assert set(check_chunk_files(root)) == {sha256(chunk).hex for chunk in artifact.chunks}


@pytest.mark.parametrize(("lines", "pause"), moments(9, 26))
def test_a_killed_computation_goes_on_where_its_journal_ends(root, start_child, make_artifact, lines, pause):
    artifact = make_artifact(1, TOKENS, heads=4, dim=64)
    said = killed_after(start_child("compute", root, 1, TOKENS), lines, pause)
    check_chunk_files(root)
    with Store.open(root, NO_FLOOR) as store:
        assert store.fsck().clean
        assert store.gc().chunks <= 1  # the one chunk that was in flight
        if not store.artifacts():
            with store.compute_draft(PLAN) as draft:
                kept = len(draft.leaves)
                assert kept >= max(map(int, said), default=0)
                assert [leaf.digest for leaf in draft.leaves] == [sha256(c) for c in artifact.chunks[:kept]]
                for chunk in artifact.chunks[kept:]:
                    draft.append(chunk)
                draft.publish(*artifact.parts)
        assert store.artifact(artifact.id).tokens() == artifact.token_ids
        assert store.fsck().clean
    assert set(check_chunk_files(root)) == {sha256(chunk).hex for chunk in artifact.chunks}


@pytest.mark.parametrize(("lines", "pause"), moments(8, 4))
def test_a_killed_gc_leaves_what_is_needed_and_is_done_again(root, start_child, make_artifact, fill, lines, pause):
    kept = make_artifact(0, 60)
    with Store.open(root, NO_FLOOR) as store:
        for seed in range(4):
            fill(store, make_artifact(seed, 60, head=kept.token_ids[: 16 * seed]))
        store.pin(kept.id)
    killed_after(start_child("collect", root, 0, 0), lines, pause)
    check_chunk_files(root)
    with Store.open(root, NO_FLOOR) as store:
        assert store.fsck().clean
        assert kept.id in [stored.artifact for stored in store.artifacts()]
        for stored in store.artifacts():
            for leaf in stored.leaves().leaves:
                assert store.has_chunk(leaf.digest)
            if stored.artifact != kept.id:
                store.remove(stored.artifact)
        store.gc()
        assert store.fsck().clean
        assert store.usage().chunks == len(kept.chunks)
    assert set(check_chunk_files(root)) == {sha256(chunk).hex for chunk in kept.chunks}


def test_a_pull_that_is_killed_again_and_again_arrives(root, start_child, make_artifact):
    artifact, rng = make_artifact(1, TOKENS, heads=4, dim=64), random.Random(7)
    for _ in range(4):
        killed_after(start_child("pull", root, 1, TOKENS), 1 + rng.randrange(8), rng.random() * 0.002)
    child = start_child("pull", root, 1, TOKENS)
    assert child.communicate(timeout=60)[0].endswith("done\n")
    with Store.open(root, NO_FLOOR) as store:
        assert store.artifact(artifact.id).tokens() == artifact.token_ids
        assert store.fsck().clean


@pytest.mark.parametrize("task", ["pull", "compute", "collect"])
@pytest.mark.parametrize("number", [2, 9, 17, 23, 30, 38])
def test_a_kill_just_before_any_file_operation_is_survived(root, start_child, make_artifact, fill, task, number):
    artifact = make_artifact(1, 8, heads=4, dim=64)
    if task == "collect":
        with Store.open(root, NO_FLOOR) as store:
            fill(store, artifact)
            fill(store, make_artifact(2, 8))
    child = start_child(task, root, 1, 8, number)
    said = child.communicate(timeout=60)[0]
    assert (child.returncode, said.endswith("done\n")) in ((-signal.SIGKILL, False), (0, True))
    files = check_chunk_files(root)
    with Store.open(root, NO_FLOOR) as store:
        assert store.fsck().clean
        for stored in store.artifacts():
            assert {leaf.digest.hex for leaf in stored.leaves().leaves} <= set(files)
        fill(store, artifact)
        store.gc()
        assert store.fsck().clean
        assert store.usage().leases == (len(child_leaves(store)) if task == "compute" else 0)


PARTS = ([32], [80, 100], None)


MOMENTS = {
    0: (18, 20, 22),  # files' times set, folder renamed, index written
    1: (56, 58, 62, 66),  # extent replaced, draft taken away, its files removed, index written
    2: (63, 65, 69, 73),  # the same, extent removed
}


@pytest.mark.parametrize(("stage", "number"), [(stage, at) for stage, row in MOMENTS.items() for at in row])
def test_a_kill_while_parts_of_an_artifact_add_up_leaves_one_of_both_states(
    root, start_child, make_artifact, stage, number
):
    artifact = make_artifact(1, 100)
    layout = artifact.manifest.layout
    child = start_child("parts", root, stage, 100, number)
    said = child.communicate(timeout=60)[0]
    assert (child.returncode, said.endswith("done\n")) in ((-signal.SIGKILL, False), (0, True))
    files = check_chunk_files(root)
    before = tuple(place for part in PARTS[:stage] for place in part)
    after = (*before, *PARTS[stage]) if PARTS[stage] else None
    with Store.open(root, NO_FLOOR) as store:
        assert store.fsck().clean
        kept = [stored.extent and stored.extent.positions for stored in store.artifacts()]
        assert kept in ([before] if before else [], [after])
        if kept:
            spans = layout.chunks() if kept[0] is None else store.artifact(artifact.id).extent.spans()
            assert {sha256(artifact.chunks[span.index]).hex for span in spans} <= set(files)
            assert store.whole(artifact.id) is not None
        with store.pull_draft(*artifact.parts, positions=PARTS[stage]) as draft:
            assert draft.missing() == []
            draft.publish()
        kept = store.artifact(artifact.id).extent
        assert (kept and kept.positions) == after
        store.gc()
        assert store.fsck().clean
        assert (store.usage().leases, store.usage().drafts) == (0, 0)


def child_leaves(store):
    """What an unfinished computation has leased."""
    with store.compute_draft(PLAN) as draft:
        return draft.leaves
