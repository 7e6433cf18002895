"""Work on a store in a process of its own, for tests that kill it or run several.

    child.py TASK ROOT SEED TOKENS [KILL_AT]

Says "writing" when it starts to write, a line after each step, and "done" at the end. With KILL_AT it
kills itself just before the file operation of that number, counted from "writing".
"""

from __future__ import annotations

import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.seeded import build_artifact
from kvsync.errors import KvsyncError
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256

PLAN = sha256(b"the plan")
THREADS = 3
PARTS = ([32], [80, 100], None)


class KillAt:
    """An audit hook that ends the process with SIGKILL at a chosen file operation."""

    OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.utime", "os.truncate", "fcntl.flock")

    def __init__(self, number: int) -> None:
        self.left = number
        self.armed = False

    def __call__(self, event: str, _arguments: tuple[object, ...]) -> None:
        if self.armed and event in self.OPERATIONS:
            self.left -= 1
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


KILL = KillAt(0)


def say(text: str) -> None:
    KILL.armed |= text == "writing" and KILL.left > 0
    sys.stdout.write(text + "\n")  # one write: several threads say things
    sys.stdout.flush()


def pull(store: Store, seed: int, tokens: int) -> None:
    artifact = build_artifact(seed, tokens, heads=4, dim=64)
    with store.pull_draft(*artifact.parts) as draft:
        say("writing")

        def put(index: int) -> None:
            draft.put(index, artifact.chunks[index])
            say(str(index))

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(put, draft.missing()))
        draft.publish()


def parts(store: Store, stage: int, tokens: int) -> None:
    """Pull an artifact part by part, all of it at stage 2; the last publish is what may be interrupted."""
    artifact = build_artifact(1, tokens)
    for step, positions in enumerate(PARTS[: stage + 1]):
        with store.pull_draft(*artifact.parts, positions=positions) as draft:
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            if step == stage:
                say("writing")
            draft.publish()


def compute(store: Store, seed: int, tokens: int) -> None:
    artifact = build_artifact(seed, tokens, heads=4, dim=64)
    with store.compute_draft(PLAN) as draft:
        say("writing")
        for chunk in artifact.chunks[len(draft.leaves) :]:
            draft.append(chunk)
            say(str(len(draft.leaves)))
        draft.publish(*artifact.parts)


def collect(store: Store, _seed: int, _tokens: int) -> None:
    say("writing")
    for artifact in store.artifacts():
        if not artifact.pinned:
            store.remove(artifact.artifact)
            say(artifact.artifact.hex)
        store.gc()


def churn(store: Store, seed: int, tokens: int) -> None:
    """Pull, check, remove and collect, over and over, while others do the same."""
    for step in range(6):
        artifact = build_artifact((seed + step) % 5, tokens)
        with store.pull_draft(*artifact.parts) as draft:
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            draft.publish()
        try:
            with store.hold(artifact.id) as held:
                for leaf in held.leaves().leaves:
                    with open(store.open_chunk(leaf.digest), "rb") as file:  # noqa: PTH123  a descriptor
                        assert sha256(file.read()) == leaf.digest
            if step % 2:
                store.remove(artifact.id)
        except KvsyncError as error:
            if error.code not in ("store.unknown_artifact", "store.in_use"):
                raise  # those two: another process removed it, or is reading it
        store.gc()
        say(str(step))


TASKS = {"pull": pull, "parts": parts, "compute": compute, "collect": collect, "churn": churn}

if __name__ == "__main__":
    task, root, seed, tokens = sys.argv[1:5]
    if len(sys.argv) > 5:
        KILL.left = int(sys.argv[5])
        sys.addaudithook(KILL)
    with Store.open(Path(root), StoreLimits(free_floor_bytes=0)) as opened:
        TASKS[task](opened, int(seed), int(tokens))
    say("done")
