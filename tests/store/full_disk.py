"""What happens on a disk that fills up, played on a real tiny file system: full_disk.py SCENARIO MOUNT_POINT

Run in a mount namespace of its own. Raises, and so exits with another status than 0, when a promise is broken.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child

from benchmarks.seeded import build_artifact as build
from kvsync.errors import StoreError
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256
from kvsync_protocol.limits import KiB, MiB

NO_FLOOR = StoreLimits(free_floor_bytes=0)


def refused(code: str, call: Callable[[], object]) -> None:
    try:
        call()
    except StoreError as error:
        if error.code != code:
            raise
    else:
        raise RuntimeError(f"{code} was expected")


def check(condition: object, what: str) -> None:
    if not condition:
        raise RuntimeError(what)


def pull(store: Store, artifact: Any) -> None:
    with store.pull_draft(*artifact.parts) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()


def fill_disk(root: Path) -> Path:
    """Use up the last byte, as another program might."""
    filler = root.parent / "filler"
    with filler.open("wb", buffering=0) as file:
        for piece in (64 * KiB, 4 * KiB, 512, 1):
            try:
                while True:
                    file.write(b"\0" * piece)
            except OSError:
                continue
    return filler


def reservation(root: Path) -> None:
    """What cannot fit is refused before a byte is written, and while another draft has reserved the room."""
    large, small = build(1, 8 * 160, heads=4, dim=64), build(2, 8 * 70, heads=4, dim=64)
    with Store.open(root, NO_FLOOR) as store:
        refused("store.full", lambda: store.pull_draft(*large.parts))
        check(not list((root / "chunks").iterdir()), "something was written")
        with store.pull_draft(*small.parts):
            other = build(3, 8 * 70, heads=4, dim=64)
            refused("store.full", lambda: store.pull_draft(*other.parts))
        pull(store, build(3, 8 * 70, heads=4, dim=64))
        check(store.fsck().clean, "fsck")


def interrupted_pull(root: Path) -> None:
    """A disk that fills up during a pull: a clean refusal, everything verified kept, and a resume."""
    artifact = build(1, 200, heads=4, dim=64)
    with Store.open(root, NO_FLOOR) as store:
        with store.pull_draft(*artifact.parts) as draft:
            for index in range(5):
                draft.put(index, artifact.chunks[index])
            filler = fill_disk(root)
            refused("store.full", lambda: draft.put(5, artifact.chunks[5]))
            check(draft.missing() == list(range(5, len(artifact.chunks))), "verified chunks were lost")
        check(store.fsck().clean, "fsck on the full disk")
    with Store.open(root, NO_FLOOR) as store:
        refused("store.full", lambda: store.pull_draft(*artifact.parts))
        filler.unlink()
        with store.pull_draft(*artifact.parts) as draft:
            check(draft.missing() == list(range(5, len(artifact.chunks))), "the resume misses more")
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            draft.publish()
        check(store.fsck().clean, "fsck")
        check(not list((root / "tmp").iterdir()), "a half-written file stayed")


def interrupted_computation(root: Path) -> None:
    """The same while computing: the journal is as it was and goes on later."""
    artifact = build(1, 200, heads=4, dim=64)
    with Store.open(root, NO_FLOOR) as store:
        with store.compute_draft(child.PLAN) as draft:
            for chunk in artifact.chunks[:4]:
                draft.append(chunk)
            filler = fill_disk(root)
            refused("store.full", lambda: draft.append(artifact.chunks[4]))
            check(len(draft.leaves) == 4, "the journal has changed")
        filler.unlink()
        with store.compute_draft(child.PLAN) as draft:
            check(len(draft.leaves) == 4, "the journal was lost")
            for chunk in artifact.chunks[4:]:
                draft.append(chunk)
            draft.publish(*artifact.parts)
        check(store.fsck().clean, "fsck")


def collection(root: Path) -> None:
    """A store on a disk without one free byte can be opened, emptied and used again."""
    kept, dropped = build(1, 60, heads=4, dim=64), build(2, 300, heads=4, dim=64)
    with Store.open(root, NO_FLOOR) as store:
        pull(store, kept)
        pull(store, dropped)
    filler = fill_disk(root)
    check(os.statvfs(root).f_bavail == 0, "the disk is not full")
    with Store.open(root, NO_FLOOR) as store:
        check(len(store.artifacts()) == 2, "reading needs space")
        store.remove(dropped.id)
        check(store.gc(dry_run=True).chunks == len(dropped.chunks), "a dry run needs space")
        report = store.gc()
        check(report.chunks == len(dropped.chunks), "gc needs space")
        check([s.artifact for s in store.artifacts()] == [kept.id], "the wrong one is gone")
        check(store.fsck().clean, "fsck")
        pull(store, build(3, 40, heads=4, dim=64))
    check(filler.stat().st_size > 0, "the filler is gone")


def eviction(root: Path) -> None:
    """On a full disk the quota still evicts."""
    made = [build(seed, 60, heads=4, dim=64) for seed in range(3)]
    with Store.open(root, NO_FLOOR) as store:
        for artifact in made:
            pull(store, artifact)
        size = store.usage().bytes
    fill_disk(root)
    with Store.open(root, StoreLimits(quota_bytes=size // 2, free_floor_bytes=0)) as store:
        check(len(store.gc().evicted) == 2, "nothing was evicted")
        check(store.fsck().clean, "fsck")


def limited_files(root: Path) -> None:
    """Files that may not grow are a full disk too; needs no file system of its own."""
    artifact = build(1, 64, block_tokens=64, heads=16, dim=64)
    sizes = [len(chunk) for chunk in artifact.chunks]
    check(max(sizes) > 300 * KiB > min(sizes), "chunks of the wrong size")
    with Store.open(root, NO_FLOOR) as store:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        with store.pull_draft(*artifact.parts) as draft:
            small, large = sizes.index(min(sizes)), sizes.index(max(sizes))
            resource.setrlimit(resource.RLIMIT_FSIZE, (300 * KiB, hard))
            draft.put(small, artifact.chunks[small])
            refused("store.full", lambda: draft.put(large, artifact.chunks[large]))
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            check(not store.has_chunk(sha256(artifact.chunks[large])), "a partial chunk is visible")
            check(small not in draft.missing(), "a verified chunk was lost")
        pull(store, artifact)
        check(store.fsck().clean, "fsck")


SCENARIOS = {
    "reservation": reservation,
    "interrupted_pull": interrupted_pull,
    "interrupted_computation": interrupted_computation,
    "collection": collection,
    "eviction": eviction,
    "limited_files": limited_files,
}

if __name__ == "__main__":
    scenario, mount_point = sys.argv[1], Path(sys.argv[2])
    if scenario != "limited_files":
        size = f"size={4 * MiB},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "none", str(mount_point)], check=True)
    SCENARIOS[scenario](mount_point / "store")
    child.say("done")
