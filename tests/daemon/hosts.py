"""Hosts for tests of the network: a home, its keys, its daemon when it runs, and whom it knows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvsync.config import Home, Settings
from kvsync.daemon import lifecycle
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.messages import Status
from kvsync.daemon.network_status import RegistryState
from kvsync.keys import ListedRegistry, NodeKeys, Peer, PeerBook, RegistryBook, TrustList
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.registry_client import RegistryClient
from kvsync.store import Store
from kvsync_protocol.digest import PrefixKey
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.ref import Ref
from tests.conftest import Artifact

SETTINGS = Settings(free_floor_bytes=0, threads=1, follow_interval_s=1)
T = TypeVar("T")


@dataclass
class Host:
    """`start` picks a port once, so that a restarted host is found where it was."""

    name: str
    home: Home
    keys: NodeKeys

    @classmethod
    def make(cls, root: Path, name: str, settings: Settings = SETTINGS) -> Host:
        home = Home(root / name)
        home.create()
        keys = NodeKeys.create(home)
        settings.save(home)
        return cls(name, home, keys)

    @property
    def client(self) -> DaemonClient:
        return DaemonClient(self.home)

    @property
    def status(self) -> Status:
        return Status.parse(self.client.status())

    @property
    def address(self) -> str:
        return self.status.address

    @property
    def trust(self) -> TrustList:
        return TrustList(self.home, self.keys.signer.public)

    def start(self) -> None:
        lifecycle.start(self.home)

    def stay_at(self, address: str) -> None:
        """Listen there from the next start on."""
        from dataclasses import replace

        port = int(address.rpartition(":")[2])
        replace(Settings.load(self.home), listen_port=port).save(self.home)

    def knows(self, other: Host, *roles: str, address: str = "", names: Iterable[str] = ()) -> None:
        addresses = (address,) if address else ()
        PeerBook(self.home).add(Peer(other.name, other.keys.peer.public, addresses, roles, tuple(names)))

    def trusts(self, other: Host, *names: str) -> None:
        self.trust.add(other.name, other.keys.signer.public, names=names)

    def uses(self, name: str, key: NodeKeys, address: str, readers: str = "peers") -> None:
        """List a registry."""
        RegistryBook(self.home).add(ListedRegistry(Peer(name, key.peer.public, (address,), ()), readers))

    def keep(self, artifact: Artifact, name: str = "", sequence: int = 1) -> None:
        """Store an artifact as if it had been computed here, under a name of this host's signer."""
        with Store.open(self.home.store_dir) as store:
            with store.pull_draft(*artifact.parts) as draft:
                for index in draft.missing():
                    draft.put(index, artifact.chunks[index])
                draft.publish()
            if name:
                ref = Ref(name, artifact.id, sequence)
                store.set_ref(ref, ref.seal(self.keys.signer), self.keys.signer.public)

    def drop(self, artifact: Artifact) -> None:
        with Store.open(self.home.store_dir) as store:
            for ref in store.refs():
                if ref.artifact == artifact.id:
                    store.remove_ref(ref.name)
            store.remove(artifact.id)

    def has(self, artifact: Artifact) -> bool:
        with Store.open(self.home.store_dir) as store:
            return store.whole(artifact.id) is not None

    def registry(self, other: Host, address: str) -> RegistryClient:
        """A client of the registry at `address`, which proves `other`'s key."""
        peer = Peer(other.name, other.keys.peer.public, (address,))
        return RegistryClient(peer, NodeIdentity(self.keys.peer), SETTINGS, Deadline.after(60))

    def state(self, registry: str) -> RegistryState:
        """As its daemon sees it; one that it has not seen yet is new."""
        unseen = RegistryState(registry, "", "", "new", "", 0, None)
        return next((state for state in self.status.registries if state.name == registry), unseen)


def keys_of(artifact: Artifact) -> list[PrefixKey]:
    """Prefix keys of its full blocks."""
    manifest = artifact.manifest
    found = block_keys(start_key(manifest.fingerprints), artifact.token_ids, manifest.schedule)
    return list(found)[: manifest.layout.full_blocks]


def until(look: Callable[[], T], *, seconds: float = 60.0) -> T:
    """What `look` returns as soon as it is true; fails when it never is."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.1)
    return found
