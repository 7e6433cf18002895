"""Who may connect right now, and as whom this node answers: lists, statements and keys as they are on disk.

Read again whenever a file changes and whenever an overlap of two keys ends, so that `peer add`, `trust revoke`
and `keys rotate` need no restart. A damaged list lets nobody in.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time

from OpenSSL import SSL

from kvsync.errors import KvsyncError
from kvsync.keys import NodeKeys, Peer, PeerBook
from kvsync.keys.node_keys import presented_from
from kvsync.keys.statements import Statements
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.tls_context import serving_context
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.signing import PublicKey

log = logging.getLogger(__name__)


class Roster:
    """Safe for several threads."""

    def __init__(self, keys: NodeKeys) -> None:
        self._keys = keys
        self.home = keys.home
        self._book = PeerBook(keys.home)
        self._files = self.home.peers_file, self.home.trust_file, self.home.statements_file
        self._identity = NodeIdentity(keys.peer)
        self._lock = threading.Lock()
        self._seen: tuple[tuple[int, ...], ...] | None = None
        self._until = 0.0
        self._peers: dict[PublicKey, Peer] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._bulk_contexts: dict[str, SSL.Context] = {}

    def find(self, key: PublicKey) -> Peer | None:
        """The peer that this key proves now."""
        with self._lock:
            self._refresh()
            return self._peers.get(key)

    def keys(self) -> frozenset[PublicKey]:
        with self._lock:
            self._refresh()
            return frozenset(self._peers)

    def identity(self) -> NodeIdentity:
        """This node's own, of this moment."""
        with self._lock:
            self._refresh()
            return self._identity

    def context(self, protocol: str) -> ssl.SSLContext:
        """A server context that lets in the peers of this moment."""
        with self._lock:
            self._refresh()
            if protocol not in self._contexts:
                self._contexts[protocol] = self._identity.server_context(self._peers, protocol)
            return self._contexts[protocol]

    def bulk_context(self, protocol: str) -> SSL.Context:
        """The same for the bulk lane's TLS."""
        with self._lock:
            self._refresh()
            if protocol not in self._bulk_contexts:
                self._bulk_contexts[protocol] = serving_context(self._identity, self._peers, protocol)
            return self._bulk_contexts[protocol]

    def _refresh(self) -> None:
        state, now = self._state(), time.time()
        if state == self._seen and now < self._until:
            return
        try:
            self._follow(now)
            self._peers = {key: peer for peer in self._book.peers() for key in peer.keys}
        except (KvsyncError, ProtocolError) as error:
            log.error("no peer is let in: %s", error)
            self._peers = {}
        self._contexts.clear()
        self._bulk_contexts.clear()
        self._seen = state

    def _follow(self, now: float) -> None:
        """Take up this node's next peer key when its time has come, and note when something changes by itself."""
        moments = [
            moment
            for step, _ in Statements(self.home).held().successors
            for moment in (presented_from(step), float(step.until + 1))
        ]
        self._until = min((moment for moment in moments if moment > now), default=float("inf"))
        current = self._keys.current(now)
        if current.peer.public != self._keys.peer.public:
            log.info("peer key %s is presented from now on", current.peer.public.key_id)
            self._identity = NodeIdentity(current.peer)
        self._keys = current

    def _state(self) -> tuple[tuple[int, ...], ...]:
        """Changes with every replacement of a file; taken before reading, so a race reads twice."""
        found: list[tuple[int, ...]] = []
        for path in self._files:
            try:
                status = path.stat()
            except OSError:
                found.append((0,))
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)
