"""fsck."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvsync.progress import Progress
from kvsync.store.parts import Parts
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.leaves import Leaf


class RepairSource(Protocol):
    """Where fsck gets the bytes of a bad or missing chunk again."""

    def fetch(self, artifact: ArtifactId, index: int, leaf: Leaf) -> bytes:
        """The chunk's bytes, which fsck checks; any CodedError means this source cannot give it."""
        ...


@dataclass(frozen=True, slots=True)
class FsckReport:
    chunks: int


def check_store(parts: Parts, repair: RepairSource | None, progress: Progress) -> FsckReport:
    raise NotImplementedError
