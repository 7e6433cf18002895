"""Which artifacts a peer may see: all, or those that a name stands for which its patterns match, and its results.

For whoever is limited to names, an artifact that no such name stands for and one that is not here are the same:
both are decided by one look at the names, before the store is asked, and refused with the same words.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kvsync.keys import Peer
from kvsync.peer.roster import Roster
from kvsync.store import Store, StoredRef
from kvsync.store.artifacts import unknown
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.signing import PublicKey

_SETTLED_NS: Final = 50_000_000
"""A folder that changed so recently may change again without its time telling."""


class Access:
    """Safe for several threads."""

    def __init__(self, store: Store, roster: Roster, refs: Path) -> None:
        self._store = store
        self._roster = roster
        self._folder = refs
        self._lock = threading.Lock()
        self._seen = -1
        self._names: Mapping[ArtifactId, tuple[StoredRef, ...]] = {}
        self._granted: set[tuple[PublicKey, ArtifactId]] = set()

    def grant(self, key: PublicKey, artifact: ArtifactId) -> None:
        """Let the peer that is listed under `key` see an artifact whatever it is called, until this process ends."""
        self._granted.add((key, artifact))

    def require(self, key: PublicKey, artifact: ArtifactId) -> None:
        """Raises NotFoundError `store.unknown_artifact`, as for one that is not here."""
        peer = self._roster.find(key)
        if peer is None or not self.sees(peer, artifact):
            raise unknown(artifact)

    def sees(self, peer: Peer, artifact: ArtifactId) -> bool:
        """False for what is not here as well, when the peer is limited to names."""
        if not peer.names or (peer.key, artifact) in self._granted:
            return True
        now = time.time()
        found = self._refs().get(artifact, ())
        return peer.sees(ref.name for ref in found if ref.expires is None or now <= ref.expires)

    def _refs(self) -> Mapping[ArtifactId, tuple[StoredRef, ...]]:
        """The names of every artifact that has some, read again when the folder of refs changes."""
        with self._lock:
            changed = self._folder.stat().st_mtime_ns
            if changed != self._seen:
                names: dict[ArtifactId, tuple[StoredRef, ...]] = {}
                for ref in self._store.refs():
                    names[ref.artifact] = (*names.get(ref.artifact, ()), ref)
                self._names = names
                self._seen = changed if time.time_ns() - changed > _SETTLED_NS else -1
            return self._names
