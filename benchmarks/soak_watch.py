"""What must not get lost while benchmarks/soak.py works: chunks that a process has pinned, holds, serves or drafts.

And what must not grow: the descriptors of a process. Knows stores, not what is done with them.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from benchmarks.seeded import Artifact, build_artifact
from kvsync.errors import NotFoundError
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.leaves import Leaf

ARTIFACTS: Final = 24


@lru_cache
def artifact(number: int) -> Artifact:
    """Those of one third share their first blocks."""
    head = build_artifact(number % 3, 48, heads=2, dim=16).token_ids
    return build_artifact(100 + number, 70 + 3 * number, heads=2, dim=16, head=head)


@dataclass(frozen=True)
class Claim:
    """Leaves that must stay readable until `stack` is closed."""

    what: str
    number: int
    leaves: list[Leaf]
    stack: ExitStack


class Watch:
    """The claims of one process on one store: those that are open, and its pins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.claims: list[Claim] = []
        self.pins: set[int] = set()
        self.verified: Counter[str] = Counter()
        self.problems: list[str] = []

    @property
    def drafting(self) -> bool:
        return any(claim.what == "drafted" for claim in self.claims)

    def verify_one(self, rng: random.Random) -> None:
        looks = list(self._looks())
        if looks:
            self._verify(*rng.choice(looks))

    def verify_all(self) -> None:
        for look in self._looks():
            self._verify(*look)

    def _looks(self) -> Iterator[tuple[str, int, Callable[[], list[Leaf]]]]:
        for claim in self.claims:
            yield claim.what, claim.number, lambda claim=claim: claim.leaves  # type: ignore[misc]
        for number in self.pins:
            yield "pinned", number, lambda number=number: kept(self._store.artifact(artifact(number).id))  # type: ignore[misc]

    def _verify(self, what: str, number: int, leaves: Callable[[], list[Leaf]]) -> None:
        try:
            for leaf in leaves():
                with os.fdopen(self._store.open_chunk(leaf.digest), "rb") as file:
                    if hashlib.sha256(file.read()).digest() != leaf.digest.raw:
                        self.problems.append(f"{what} artifact {number}: other bytes")
        except NotFoundError as error:
            self.problems.append(f"{what} artifact {number}: {error.code}: {error.message}")
        self.verified[f"verified {what}"] += 1


def kept(stored: StoredArtifact) -> list[Leaf]:
    """The leaves that are here of an artifact, which may be kept in part."""
    leaves = stored.leaves().leaves
    return list(leaves) if stored.extent is None else [leaves[span.index] for span in stored.extent.spans()]


def descriptors() -> list[str]:
    """What the descriptors of this process stand for, those of a kind alike."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(entry.readlink()).split(":[")[0])
        except FileNotFoundError:  # the one by which the directory is read
            continue
    return sorted(found)
