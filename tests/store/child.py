"""Work on a store in a process of its own, for tests that kill it or run several: child.py TASK ROOT …

Prints a line when it starts to write, one after each step, and "done" at the end.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from kvsync.errors import KvsyncError
from kvsync.store import Store, StoreLimits
from kvsync_protocol.digest import sha256

PLAN = sha256(b"the plan")


def builders() -> ModuleType:
    """tests/conftest.py, which makes the same artifacts as the fixtures do."""
    spec = importlib.util.spec_from_file_location("builders", Path(__file__).parents[1] / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["builders"] = module
    spec.loader.exec_module(module)
    return module


def say(text: str) -> None:
    print(text, flush=True)


def pull(store: Store, seed: int, tokens: int) -> None:
    artifact = builders().build_artifact(seed, tokens, heads=4, dim=64)
    with store.pull_draft(*artifact.parts) as draft:
        say("writing")
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
            say(str(index))
        draft.publish()


def compute(store: Store, seed: int, tokens: int) -> None:
    artifact = builders().build_artifact(seed, tokens, heads=4, dim=64)
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
    build = builders().build_artifact
    for step in range(6):
        artifact = build((seed + step) % 5, tokens)
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


TASKS = {"pull": pull, "compute": compute, "collect": collect, "churn": churn}

if __name__ == "__main__":
    task, root, seed, tokens = sys.argv[1:5]
    with Store.open(Path(root), StoreLimits(free_floor_bytes=0)) as opened:
        TASKS[task](opened, int(seed), int(tokens))
    say("done")
