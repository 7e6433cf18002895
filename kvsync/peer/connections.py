"""Open connections of a server: how many there may be, whose they are, and how to end them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from kvsync_protocol.signing import PublicKey


@dataclass(eq=False, slots=True)
class Connection:
    """`abort` breaks it at once, `drain` lets it finish what it is doing. Both from any thread.

    `idle_since` (time.monotonic()) is None while a request is worked on.
    """

    key: PublicKey
    abort: Callable[[], None]
    drain: Callable[[], None]
    idle_since: float | None = field(default_factory=time.monotonic)


class ConnectionTable:
    """At most `limit` connections from accept to close; strangers hold at most half of them, and one known
    key three quarters (but four if it likes), so that nobody keeps everybody else out.

    A connection is first `admit`ted, then either `release`d or, once its key is proven, `add`ed and
    in the end `remove`d. Safe for several threads.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending = 0
        self._open: set[Connection] = set()
        self._draining = False
        self._changed = threading.Condition()

    def admit(self) -> bool:
        """Count a new connection, unless there are too many."""
        with self._changed:
            if self._draining or self._pending >= max(1, self._limit // 2):
                return False
            if self._pending + len(self._open) >= self._limit:
                return False
            self._pending += 1
            return True

    def release(self) -> None:
        """Uncount a connection that proved no key."""
        with self._changed:
            self._pending -= 1
            self._changed.notify_all()

    def add(self, connection: Connection) -> None:
        """Enter an admitted connection whose handshake is done. One beyond its key's share is broken at once."""
        with self._changed:
            self._pending -= 1
            self._open.add(connection)
            draining = self._draining
            held = sum(other.key == connection.key for other in self._open)
        if held > max(4, self._limit * 3 // 4):
            connection.abort()
        elif draining:
            connection.drain()

    def remove(self, connection: Connection) -> None:
        with self._changed:
            self._open.discard(connection)
            self._changed.notify_all()

    def count(self) -> int:
        with self._changed:
            return self._pending + len(self._open)

    def busy(self) -> frozenset[PublicKey]:
        """The keys of those with a request in hand."""
        return frozenset(connection.key for connection in self._listed() if connection.idle_since is None)

    def abort_strangers(self, known: Collection[PublicKey]) -> None:
        """Break the connections of keys that are no longer known."""
        for connection in self._listed():
            if connection.key not in known:
                connection.abort()

    def abort_idle(self, seconds: float) -> None:
        """Break connections without a request for so long."""
        limit = time.monotonic() - seconds
        for connection in self._listed():
            if connection.idle_since is not None and connection.idle_since < limit:
                connection.abort()

    def drain(self) -> None:
        """Admit nobody more, and let everybody finish the request in hand."""
        with self._changed:
            self._draining = True
        for connection in self._listed():
            connection.drain()

    def abort_all(self) -> None:
        for connection in self._listed():
            connection.abort()

    def wait_empty(self, seconds: float) -> bool:
        """True when no connection is left, waiting for that at most so long."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._pending and not self._open, seconds)

    def _listed(self) -> list[Connection]:
        with self._changed:
            return list(self._open)
