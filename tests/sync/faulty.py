"""A server that lies: the real one, with faults as constructor arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvsync.peer.bulk_server import BulkLane, BulkSession
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.control import ControlLane
from kvsync.peer.server import PeerServer
from kvsync.peer.stream import Stream
from kvsync.store import StoredArtifact
from kvsync_protocol.bulk import BulkRequest
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.signing import PublicKey

Change = Callable[[bytes], bytes]
SendChunk = Callable[["FaultySession", BulkRequest, memoryview], None]


@dataclass
class Faults:
    """What to do instead of the honest thing, and a record of what was done.

    `chunk` answers a GET of a leaf in `leaves` (None means all of them).
    """

    envelope: Change | None = None
    leaf_table: Change | None = None
    tokens: Change | None = None
    refs: Change | None = None
    have: Change | None = None
    description: Change | None = None
    chunk: SendChunk | None = None
    leaves: set[int] | None = None
    chunks: list[int] = field(default_factory=list)


def envelope_alone(description: bytes) -> bytes:
    """A description cut after its first part: who reads on fails with `message.size`."""
    return description[: 4 + int.from_bytes(description[:4])]


class FaultyControl(ControlLane):
    faults = Faults()

    def _changed(self, data: bytes, change: Change | None) -> bytes:
        return change(data) if change is not None else data

    def envelope(self, stored: StoredArtifact) -> bytes:
        return self._changed(super().envelope(stored), self.faults.envelope)

    def leaves(self, stored: StoredArtifact) -> bytes:
        return self._changed(super().leaves(stored), self.faults.leaf_table)

    def tokens(self, stored: StoredArtifact) -> bytes:
        return self._changed(super().tokens(stored), self.faults.tokens)

    def have(self, artifact: ArtifactId) -> bytes:
        return self._changed(super().have(artifact), self.faults.have)

    def description(self, artifact: ArtifactId) -> bytes:
        return self._changed(super().description(artifact), self.faults.description)

    def refs(self, key: PublicKey, name: str, after: str) -> bytes:
        return self._changed(super().refs(key, name, after), self.faults.refs)


class FaultySession(BulkSession):
    faults = Faults()

    def send_chunk(self, request: BulkRequest, chunk: ChunkFile) -> None:
        self.faults.chunks.append(request.index)
        faulty = self.faults.leaves is None or request.index in self.faults.leaves
        if faulty and self.faults.chunk is not None:
            self.faults.chunk(self, request, chunk.whole(memoryview(bytearray(chunk.size))))
        else:
            super().send_chunk(request, chunk)


class FaultyLane(BulkLane):
    faults = Faults()

    def session(self, key: PublicKey, stream: Stream) -> BulkSession:
        session = FaultySession(self._store, self._offers, self._roster, self._access, key, stream, self._wake)
        session.faults = self.faults
        return session


class FaultyServer(PeerServer):
    control_type = FaultyControl
    bulk_type = FaultyLane

    def __init__(self, *node: Any, faults: Faults) -> None:
        super().__init__(*node)
        for lane in (self.control, self.bulk):
            lane.faults = faults  # type: ignore[union-attr]
