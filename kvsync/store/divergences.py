"""Evidence of divergences: one record per pair of artifacts, kept for good.

    divergences/<64 hex>.json    named by the pair of artifacts; gc and `remove` leave it alone

Whether one is settled, and against whom, follows from what this node's own audits have refuted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.folder import Folder
from kvsync.store.temp import TempFiles
from kvsync_protocol.attestation import Discrepancy
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.divergence import Divergence, block_spans
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_DIVERGENCE_BYTES

MAX_DIVERGENCES = 1000
"""Records kept; whoever makes more of them has been noticed long before."""
_END = ".json"
_NAME = re.compile(r"[0-9a-f]{64}\.json", re.ASCII)


class Verdict(enum.StrEnum):
    """What recomputing the block has shown."""

    OPEN = "open"
    FIRST = "first is right"
    SECOND = "second is right"
    NEITHER = "neither is right"


@dataclass(frozen=True, slots=True)
class StoredDivergence:
    """A record and its verdict, as far as this node has recomputed the block."""

    name: Digest
    divergence: Divergence
    verdict: Verdict

    @property
    def settled(self) -> bool:
        return self.verdict is not Verdict.OPEN

    @property
    def artifacts(self) -> tuple[ArtifactId, ArtifactId]:
        first, second = self.divergence.sides
        return first.artifact, second.artifact


class DivergenceFiles:
    """The divergences/ folder."""

    def __init__(self, folder: Folder, temp: TempFiles) -> None:
        self._folder = folder
        self._temp = temp

    def add(self, divergence: Divergence) -> bool:
        """Keep a record; False when this pair's is here already. Raises StoreError `store.divergences`."""
        name = divergence.name.hex + _END
        if self._folder.status(name) is not None:
            return False
        if len(self._folder.names()) >= MAX_DIVERGENCES:
            raise StoreError(
                "store.divergences",
                f"there are {MAX_DIVERGENCES} divergences here already",
                hint="kvsync divergences ls; move their files elsewhere once they are dealt with",
            )
        self._temp.publish(divergence.encode(), self._folder, name)
        self._folder.sync()
        return True

    def names(self) -> list[str]:
        """Files of other names are strangers, which fsck reports."""
        return [name for name in self._folder.names() if _NAME.fullmatch(name)]

    def load(self, file_name: str) -> Divergence:
        """Raises StoreError `store.divergence_damaged`; NotFoundError `file.missing`."""
        try:
            found = Divergence.parse(self._folder.read(file_name, MAX_DIVERGENCE_BYTES))
            found.check()
        except ProtocolError as error:
            raise StoreError(
                "store.divergence_damaged",
                f"{self._folder.path / file_name} is damaged: {error.message}",
                hint="restore or remove it",
            ) from error
        if found.name.hex + _END != file_name:
            raise StoreError("store.divergence_damaged", f"{file_name} is the record of another pair")
        return found

    def all(self, refuted: Mapping[ArtifactId, Discrepancy]) -> list[StoredDivergence]:
        """Sound records, by name; damaged ones are left to fsck."""
        found = []
        for name in self.names():
            try:
                record = self.load(name)
            except (StoreError, NotFoundError):
                continue
            found.append(StoredDivergence(record.name, record, verdict(record, refuted)))
        return found


def verdict(record: Divergence, refuted: Mapping[ArtifactId, Discrepancy]) -> Verdict:
    """Settled when this node has recomputed the block of either side.

    A side that it has not refuted is right, unless what was computed is not that side's bytes either.
    """
    wrong = [refuted.get(side.artifact) for side in record.sides]
    if all(wrong) or any(
        found is not None and not _agrees(record, 1 - number, found) for number, found in enumerate(wrong)
    ):
        return Verdict.NEITHER
    if wrong[0] is not None:
        return Verdict.SECOND
    return Verdict.FIRST if wrong[1] is not None else Verdict.OPEN


def _agrees(record: Divergence, number: int, found: Discrepancy) -> bool:
    """Whether a side has the digest that was computed; True where the record does not show that leaf."""
    manifests = record.check()
    spans = block_spans(manifests[number].layout)[record.block]
    return all(
        proven.leaf.digest == found.found
        for span, proven in zip(spans, record.sides[number].leaves, strict=True)
        if span.index == found.leaf
    )
