"""A node of the demo: its own home, keys and daemon process, as a user would make them."""

from __future__ import annotations

from pathlib import Path

from kvsync.config import Home, Settings
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.lifecycle import start, stop
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList


class DemoNode:
    """Created empty; `start` runs a real daemon on a free loopback port."""

    def __init__(self, name: str, root: Path, settings: Settings) -> None:
        self.name = name
        self.home = Home(root)
        self.home.create()
        self.keys = NodeKeys.create(self.home)
        settings.save(self.home)
        self.peers = PeerBook(self.home)
        self.client = DaemonClient(self.home)
        self.address = ""

    def start(self) -> None:
        """Raises UnavailableError when the daemon does not come up."""
        start(self.home)
        self.address = str(self.client.status()["address"])

    def stop(self) -> None:
        stop(self.home)

    def trust(self, other: DemoNode) -> None:
        """Count the other node's signatures here."""
        TrustList(self.home, self.keys.signer.public).add(other.name, other.keys.signer.public)

    def meet(self, other: DemoNode, *, roles: tuple[str, ...] = ()) -> None:
        """Pin the other node's peer key here, with what it may do."""
        addresses = (other.address,) if other.address else ()
        self.peers.add(Peer(other.name, other.keys.peer.public, addresses, roles))
