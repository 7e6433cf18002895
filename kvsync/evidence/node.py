"""A node made for one run: its own home, keys and lists, and a server of its own when it provides."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.store import Store


class Node:
    """Created empty, below `root`."""

    def __init__(self, name: str, root: Path, settings: Settings) -> None:
        self.name = name
        self.home = Home(root)
        self.home.create()
        self.keys = NodeKeys.create(self.home)
        self.settings = settings
        settings.save(self.home)
        self.peers = PeerBook(self.home)
        self.trust_list = TrustList(self.home, self.keys.signer.public)
        self.address = ""

    def trust(self, other: Node) -> None:
        """Count the other node's signatures here."""
        self.trust_list.add(other.name, other.keys.signer.public)

    def meet(self, other: Node, *, roles: tuple[str, ...] = ()) -> None:
        """Pin the other node's peer key here, with what it may do."""
        addresses = (other.address,) if other.address else ()
        self.peers.add(Peer(other.name, other.keys.peer.public, addresses, roles))

    @asynccontextmanager
    async def serving(self, store: Store) -> AsyncIterator[None]:
        """Provide what is in `store` at a free loopback port, over TLS with mutual identities.

        Raises:
            UnavailableError: `peer.listen`.
        """
        from kvsync.peer.server import PeerServer

        server = PeerServer(store, self.keys, self.home, self.trust_list, self.settings)
        host, port = await server.start()
        self.address = f"{host}:{port}"
        try:
            yield
        finally:
            await server.stop()
