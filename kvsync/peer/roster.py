"""Who may connect right now: peers.json as it is on disk, and the TLS contexts made from it.

Read again whenever the file changes, so `peer add` and `peer rm` need no restart. A damaged list
lets nobody in.
"""

from __future__ import annotations

import logging
import ssl
import threading

from kvsync.config import Home
from kvsync.errors import KvsyncError
from kvsync.keys import Peer, PeerBook
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.signing import PublicKey

log = logging.getLogger(__name__)


class Roster:
    """Safe for several threads."""

    def __init__(self, home: Home, identity: NodeIdentity) -> None:
        self._home = home
        self._book = PeerBook(home)
        self._identity = identity
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._peers: dict[PublicKey, Peer] = {}
        self._contexts: dict[str, ssl.SSLContext] = {}

    def find(self, key: PublicKey) -> Peer | None:
        with self._lock:
            self._refresh()
            return self._peers.get(key)

    def keys(self) -> frozenset[PublicKey]:
        with self._lock:
            self._refresh()
            return frozenset(self._peers)

    def context(self, protocol: str) -> ssl.SSLContext:
        """A server context that lets in the peers of this moment."""
        with self._lock:
            self._refresh()
            if protocol not in self._contexts:
                self._contexts[protocol] = self._identity.server_context(self._peers, protocol)
            return self._contexts[protocol]

    def _refresh(self) -> None:
        state = self._state()
        if state == self._seen:
            return
        try:
            self._peers = {peer.key: peer for peer in self._book.peers()}
        except (KvsyncError, ProtocolError) as error:
            log.error("no peer is let in: %s", error)
            self._peers = {}
        self._contexts.clear()
        self._seen = state

    def _state(self) -> tuple[int, ...]:
        """Changes with every replacement of the file; taken before reading, so a race reads twice."""
        try:
            found = self._home.peers_file.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size
