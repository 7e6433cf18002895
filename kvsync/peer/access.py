"""Which artifacts a peer may see: all, or those that a name stands for which its patterns match, and its results.

For whoever is limited to names, an artifact that no such name stands for and one that is not here are the same:
neither is among those he sees, which is one look into one table of his, before the store is asked, and both are
refused with the same words. Which others there are changes nothing of that look.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from kvsync.keys import Peer
from kvsync.peer.roster import Roster
from kvsync.store import Store, StoredRef
from kvsync.store.artifacts import unknown
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.signing import PublicKey

_NEVER: Final = -math.inf
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
        self._refs: Sequence[StoredRef] = ()
        self._shown: dict[tuple[str, ...], Mapping[ArtifactId, float]] = {}
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
        return time.time() <= self._visible(peer).get(artifact, _NEVER)

    def knows(self, key: PublicKey, artifact: ArtifactId) -> bool:
        """Whether the peer that is listed under `key` may be told that an artifact is here."""
        peer = self._roster.find(key)
        return peer is not None and self.sees(peer, artifact)

    def _visible(self, peer: Peer) -> Mapping[ArtifactId, float]:
        """What the patterns of a peer show, each until when; made again when the folder of refs changes."""
        with self._lock:
            changed = self._folder.stat().st_mtime_ns
            if changed != self._seen:
                self._refs, self._shown = self._store.refs(), {}
                self._seen = changed if time.time_ns() - changed > _SETTLED_NS else -1
            found = self._shown.get(peer.names)
            if found is None:
                found = self._shown[peer.names] = _shown(peer, self._refs)
            return found


def _shown(peer: Peer, refs: Iterable[StoredRef]) -> Mapping[ArtifactId, float]:
    found: dict[ArtifactId, float] = {}
    for ref in refs:
        if peer.sees([ref.name]):
            until = math.inf if ref.expires is None else float(ref.expires)
            found[ref.artifact] = max(until, found.get(ref.artifact, _NEVER))
    return found
