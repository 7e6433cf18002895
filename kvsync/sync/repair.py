"""A `RepairSource` that is a peer: fsck asks it for single chunks, and checks what comes."""

from __future__ import annotations

import asyncio

from kvsync.config import Settings
from kvsync.keys import KeySpread, NodeKeys, Peer, TrustList
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.progress import Progress, silent
from kvsync.store import FsckReport, Store
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.leaves import Leaf


async def repair(
    store: Store, peer: Peer, *, keys: NodeKeys, settings: Settings, progress: Progress = silent
) -> FsckReport:
    """Check the whole store and fetch its bad and missing chunks, and only those, from `peer`.

    Raises:
        TrustError: `peer.identity`, `peer.refused`.
        UnavailableError: `peer.unreachable` before anything is checked.
    """
    deadline = Deadline.after(settings.transfer_deadline_s)
    keys = keys.current()
    spread = KeySpread(keys.home, TrustList(keys.home, keys.signer.public))
    async with PeerClient(peer, NodeIdentity(keys.peer), settings, deadline, spread) as client:
        await client.hello()
        source = _PeerSource(client.bulk(encrypted=True))
        try:
            return await asyncio.to_thread(store.fsck, repair=source, progress=progress)
        finally:
            source.close()


class _PeerSource:
    """One connection, opened when the first chunk is wanted and again after it broke."""

    def __init__(self, connection: BulkConnection) -> None:
        self._connection = connection

    def fetch(self, artifact: ArtifactId, index: int, leaf: Leaf) -> bytes:
        """The peer's bytes of this leaf, not verified here. Raises as `BulkConnection.receive`."""
        try:
            if not self._connection.is_open:
                self._connection.open()
            self._connection.ask(artifact, index, Encoding.IDENTITY)
            pieces, _ = self._connection.receive(leaf.size)
            data = bytearray()
            for piece in pieces:
                data += piece
        except BaseException:
            self._connection.close()  # an answer that was not taken must not be taken for the next one
            raise
        return bytes(data)

    def close(self) -> None:
        self._connection.close()
