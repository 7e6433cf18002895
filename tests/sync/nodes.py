"""Nodes on loopback with real stores, keys and servers, for the tests of peer and sync."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, Peer, PeerBook, Statements, TrustList
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.client import PeerClient
from kvsync.peer.server import PeerServer
from kvsync.store import Store, StoredArtifact, StoreLimits
from kvsync.sync import PullReport, PushReport, pull, push
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import TrustError

MakeServer = Callable[[Store, NodeKeys, Home, TrustList, Settings], PeerServer]


class Node:
    """One node: home, keys, store; `serving` runs its server."""

    def __init__(
        self, root: Path, name: str, settings: Settings | None = None, limits: StoreLimits | None = None
    ) -> None:
        self.name = name
        self.home = Home(root / name)
        self.home.create()
        self.keys = NodeKeys.create(self.home)
        self.settings = settings or Settings(stall_timeout_s=15, transfer_deadline_s=120)
        self.book = PeerBook(self.home)
        self.trust = TrustList(self.home, self.keys.signer.public)
        self.store = Store.open(self.home.store_dir, limits or StoreLimits(free_floor_bytes=0))
        self.address = ""

    def close(self) -> None:
        self.store.close()

    def meet(self, other: Node, *roles: str) -> None:
        """Pin the other's peer key, allow it `roles` here, and trust its signer."""
        self.book.add(Peer(other.name, other.keys.peer.public, (), roles))

    def as_peer(self, *addresses: str) -> Peer:
        return Peer(self.name, self.keys.peer.public, addresses or (self.address,))

    def keep(self, artifact: Any) -> StoredArtifact:
        """Store an artifact of the shared fixture."""
        with self.store.pull_draft(*artifact.parts) as draft:
            for index in draft.missing():
                draft.put(index, artifact.chunks[index])
            return draft.publish()

    async def pull_until_revoked(self, provider: Node, wanted: object, held: threading.Event) -> TrustError:
        """Begin a pull and revoke the provider's key here once `held` is set; how the pull ended."""
        pulling = asyncio.create_task(self.pull(provider, wanted))
        assert await asyncio.to_thread(held.wait, 20)
        Statements(self.home).revoke(provider.keys.peer.public, self.keys.signer)
        with pytest.raises(TrustError) as caught:
            await pulling
        return caught.value

    async def send(self, stream: BulkConnection, artifact: ArtifactId, indices: Iterable[int]) -> None:
        """Send chunks of an artifact that is here, by hand."""
        leaves = self.store.artifact(artifact).leaves().leaves
        for index in indices:
            with ChunkFile(self.store, leaves[index]) as chunk:
                stream.send(artifact, index, chunk, Encoding.IDENTITY)
            await asyncio.to_thread(stream.confirm)

    async def offer(self, asking: PeerClient, artifact: Any, indices: Iterable[int] | None = None) -> None:
        """Offer an artifact of the shared fixture that is here and send these chunks, or all: the commit is left."""
        await asking.offer(artifact.envelope)
        await asking.offer_leaves(artifact.id, artifact.leaves)
        await asking.offer_tokens(artifact.id, artifact.tokens)
        await asking.missing(artifact.manifest)
        stream = asking.bulk()
        await asyncio.to_thread(stream.open)
        await self.send(stream, artifact.id, range(len(artifact.chunks)) if indices is None else indices)
        stream.close()

    @asynccontextmanager
    async def serving(self, make: MakeServer = PeerServer) -> AsyncIterator[PeerServer]:
        server = make(self.store, self.keys, self.home, self.trust, self.settings)
        host, port = await server.start()
        self.address = f"{host}:{port}"
        try:
            yield server
        finally:
            await server.stop()

    async def pull(self, other: Node, wanted: object, **options: Any) -> PullReport:
        options.setdefault("fingerprints", None)
        settings = dataclasses.replace(self.settings, **options.pop("settings", {}))
        return await pull(
            self.store,
            self.trust,
            options.pop("peer") if "peer" in options else other.as_peer(),
            str(wanted),
            keys=self.keys,
            settings=settings,
            **options,
        )

    async def push(self, other: Node, artifact: ArtifactId, **options: Any) -> PushReport:
        settings = dataclasses.replace(self.settings, **options.pop("settings", {}))
        return await push(self.store, other.as_peer(), artifact, keys=self.keys, settings=settings, **options)
