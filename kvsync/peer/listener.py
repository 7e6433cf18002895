"""One TCP port: accepts, looks at the ClientHello's ALPN without taking it, and hands the socket on.

The handshake belongs to whoever receives the socket. Nothing here waits without a deadline: a
connection has HANDSHAKE_S to show a whole ClientHello, and `admit` bounds how many may be doing so.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from kvsync.errors import UnavailableError
from kvsync.peer.client_hello import RECORD_HEADER_BYTES, offered_protocols, record_bytes
from kvsync.peer.deadline import Deadline
from kvsync.peer.place import host_of
from kvsync_protocol.errors import MalformedError

HANDSHAKE_S: Final = 10.0
_BACKLOG: Final = 128

log = logging.getLogger(__name__)


class Listener:
    """Listens at (`host`, `port`); `lanes` maps an ALPN name to the taker of its sockets.

    A lane is called in a thread of its own and owns the socket from then on. `admit` is asked for
    each new connection; `release` follows when the connection got no lane. `closed` says of some lanes to which
    addresses they are; to those the lane is not there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        lanes: Mapping[bytes, Callable[[socket.socket], None]],
        *,
        admit: Callable[[], bool],
        release: Callable[[], None],
        closed: Mapping[bytes, Callable[[str], bool]] = MappingProxyType({}),
        handshake_s: float = HANDSHAKE_S,
    ) -> None:
        self._lanes = lanes
        self._admit = admit
        self._release = release
        self._closed = closed
        self._handshake_s = handshake_s
        self._stopping = threading.Event()
        self._socket = _bind(host, port)
        place = self._socket.getsockname()
        self.address: tuple[str, int] = host_of(place), place[1]
        self._thread = threading.Thread(target=self._accept, name="kvsync-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Accept no more. Connections that were handed on are not touched."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes accept
        self._socket.close()
        if self._thread.is_alive():
            self._thread.join()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                log.warning("accept failed: %s", error)
                self._stopping.wait(0.1)  # out of descriptors: closing connections frees some
                continue
            if not self._admit():
                connection.close()
                continue
            try:
                threading.Thread(target=self._route, args=(connection,), name="kvsync-hello", daemon=True).start()
            except RuntimeError as error:
                log.warning("no thread for a new connection: %s", error)
                self._release()
                connection.close()

    def _route(self, connection: socket.socket) -> None:
        lane = None
        try:
            lane = self._choose(connection)
        except (MalformedError, UnavailableError, OSError) as error:
            log.info("connection without a usable ClientHello: %s", error)
        if lane is None:
            self._release()
            connection.close()
        else:
            lane(connection)

    def _choose(self, connection: socket.socket) -> Callable[[socket.socket], None] | None:
        deadline = Deadline.after(self._handshake_s)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        header = _peek(connection, RECORD_HEADER_BYTES, deadline)
        record = _peek(connection, record_bytes(header), deadline)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        offered = offered_protocols(record)
        host = host_of(connection.getpeername())
        return next((self._lanes[name] for name in offered if self._is_open(name, host)), None)

    def _is_open(self, name: bytes, host: str) -> bool:
        return name in self._lanes and not (name in self._closed and self._closed[name](host))


def _peek(connection: socket.socket, size: int, deadline: Deadline) -> bytes:
    """The first `size` bytes, which stay in the socket. The kernel wakes us only when all are there."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    if not poller.poll(deadline.remaining() * 1000):
        deadline.remaining()
    connection.settimeout(deadline.remaining())
    found = connection.recv(size, socket.MSG_PEEK)
    if len(found) < size:
        raise MalformedError("tls.record", "the connection ended before a ClientHello")
    return found


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, number)
    except OSError as error:
        raise UnavailableError(
            "peer.listen", f"cannot listen at {host}: {error.strerror}", hint="set listen_host"
        ) from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise UnavailableError(
            "peer.listen",
            f"cannot listen at {host} port {port}: {error.strerror}",
            hint="set listen_port to a free port, or to 0",
        ) from error
    return listening
