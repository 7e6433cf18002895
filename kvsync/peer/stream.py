"""Exact reads and writes on a TLS connection, each with a stall timeout, a least rate and a deadline.

Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio.trsock
import contextlib
import mmap
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from typing import Final, NoReturn

from kvsync.errors import KvsyncError, UnavailableError
from kvsync.peer.deadline import Deadline
from kvsync.peer.rates import Direction, Throttle
from kvsync_protocol.errors import TrustError
from kvsync_protocol.limits import KiB

LEAST_RATE: Final = 32 * KiB
"""Bytes per second. Slower is as good as stalled: a byte now and then must not hold a connection."""
NEAR_S: Final = 0.0002
NEAR_BUFFER_BYTES: Final = 128 * KiB
"""Up to this round-trip time so small a send buffer fills the line, and its bytes are still in the CPU's
cache when the other side takes them: 8 % more on loopback. Farther away the kernel sizes it."""
_MIN_RTT_AT: Final = 148
"""Offset of tcpi_min_rtt, microseconds, in Linux's struct tcp_info."""
PIECE: Final = 512 * KiB
"""Bytes that go through TLS, hash and file together; each piece has a stall timeout and a turn of its own."""
NEAR_PIECE: Final = 2048 * KiB
"""The same on a near line that has no limit: fewer changes between the stages, 6 % less CPU time per byte."""


def buffer(size: int) -> memoryview:
    """`size` bytes that take no memory before they are used."""
    return memoryview(mmap.mmap(-1, size))


class SecureStream:
    """One TLS connection after its handshake. Not for several threads, but `abort` may come from any."""

    def __init__(
        self, connection: ssl.SSLSocket, *, stall_s: float, deadline: Deadline, throttle: Throttle | None = None
    ) -> None:
        self.throttle = throttle
        self._broken = threading.Event()
        self._connection = connection
        self._stall_s = stall_s
        self._deadline = deadline
        self._piece = buffer(NEAR_PIECE)
        connection.settimeout(stall_s)
        self._is_near = round_trip_s(connection) < NEAR_S
        if self._is_near:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BUFFER_BYTES)

    @property
    def piece(self) -> int:
        """Bytes to move at once, as of now."""
        unlimited = self.throttle is None or self.throttle.unlimited
        return NEAR_PIECE if self._is_near and unlimited else PIECE

    def wait(self, wake: int) -> bool:
        """Until there is something to read; False when the descriptor `wake` became readable first.

        Raises:
            UnavailableError: `peer.stalled`, `peer.deadline`.
        """
        if self._connection.pending():
            return True
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        poller.register(wake, select.POLLIN)
        ready = poller.poll(self._deadline.remaining(self._stall_s) * 1000)
        if not ready:
            raise _stalled()
        return all(descriptor != wake for descriptor, _ in ready)

    def read_into(self, view: memoryview) -> None:
        """Fill `view`.

        Raises:
            UnavailableError: `peer.closed`, `peer.stalled`, `peer.deadline`.
            TrustError: `peer.refused` when the other side does not know this node.
        """
        end, at = self._end(len(view)), 0
        while at < len(view):
            piece = view[at : at + self.piece]
            end += self._wait_turn(len(piece), "in")
            if not self._read(piece, end):
                raise _closed()
            at += len(piece)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, each piece valid until the next is asked for. Raises like `read_into`."""
        end = self._end(size)
        while size:
            view = self._piece[: min(size, self.piece)]
            end += self._wait_turn(len(view), "in")
            if not self._read(view, end):
                raise _closed()
            size -= len(view)
            yield view

    def read_frame(self, size: int) -> bytes | None:
        """The next `size` bytes, or None when the other side ended the connection before them."""
        frame = bytearray(size)
        return bytes(frame) if self._read(memoryview(frame), self._end(size)) else None

    def await_alert(self, seconds: float) -> None:
        """Wait for the other side to refuse; silence for so long is none. Raises like `read_into`."""
        self._connection.settimeout(seconds)
        try:
            self.read_frame(1)
        finally:
            self._connection.settimeout(self._stall_s)

    def write(self, *parts: bytes | memoryview) -> None:
        """Send all of every part. Raises like `read_into`."""
        end = self._end(sum(len(part) for part in parts))
        try:
            for part in parts:
                left = memoryview(part)
                while left:
                    piece = left[: self.piece]
                    end += self._wait_turn(len(piece), "out")
                    self._connection.sendall(piece)
                    if time.monotonic() > end:
                        self._too_late()
                    left = left[len(piece) :]
        except OSError as error:
            raise stream_error(error) from error

    def abort(self) -> None:
        """Break the connection, waking whoever waits on it."""
        self._broken.set()
        with contextlib.suppress(OSError):
            # Not SSLSocket.shutdown, which would take the TLS state from under the other thread.
            socket.socket.shutdown(self._connection, socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _read(self, view: memoryview, end: float) -> bool:
        """False when the other side ended the connection before the first byte."""
        # Once per TLS record, 16 KiB, with the other streams waiting for the interpreter: nothing to spare.
        size, at, read, now = len(view), 0, self._connection.read, time.monotonic
        try:
            while at < size:
                got = int(read(size - at, view[at:]))
                if not got:
                    break
                at += got
                if now() > end:
                    self._too_late()
        except OSError as error:
            raise stream_error(error) from error
        if 0 < at < size:
            raise UnavailableError("peer.closed", "the peer closed the connection in the middle of a message")
        return at == size

    def _wait_turn(self, size: int, direction: Direction) -> float:
        """Let the rates have their say; seconds waited, which do not count as the other side's."""
        if self.throttle is None:
            return 0.0
        waited = self.throttle.take(size, direction, self._broken, self._deadline.at)
        if waited:
            self._deadline.remaining()
        return waited

    def _end(self, size: int) -> float:
        return min(self._deadline.at, time.monotonic() + self._stall_s + size / LEAST_RATE)

    def _too_late(self) -> NoReturn:
        self._deadline.remaining()
        raise _stalled()


def _closed() -> UnavailableError:
    return UnavailableError("peer.closed", "the peer closed the connection")


def _stalled() -> UnavailableError:
    return UnavailableError(
        "peer.stalled", "the peer moves nothing, or too little", hint="try again, or another peer"
    )


_REFUSALS: Final = ("UNKNOWN_CA", "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "ACCESS_DENIED")


def stream_error(error: OSError) -> KvsyncError | TrustError:
    """A failed read, write or connect, as kvsync names it."""
    if isinstance(error, TimeoutError):
        return _stalled()
    if isinstance(error, ssl.SSLError):
        return tls_error(error)
    return UnavailableError("peer.closed", f"the connection broke: {error.strerror or error}")


def tls_error(error: ssl.SSLError) -> KvsyncError | TrustError:
    """A failed handshake or a TLS alert, as kvsync names it.

    In TLS 1.3 a client learns only after its own handshake that the server refused its certificate.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return TrustError("peer.identity", "something that does not hold the pinned key answers there")
    if any(name in (error.reason or "") for name in _REFUSALS):
        return TrustError("peer.refused", "the peer does not know this node", hint="kvsync peer add, on the peer")
    return UnavailableError("peer.closed", f"the TLS connection broke: {error.reason or error}")


def round_trip_s(connection: socket.socket | asyncio.trsock.TransportSocket) -> float:
    """The kernel's least measured round-trip time (tcp_info.tcpi_min_rtt), which a busy CPU does not lengthen.

    Infinity where there is no telling.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
        return float(struct.unpack_from("=I", info, _MIN_RTT_AT)[0]) / 1e6
    except (OSError, struct.error):
        return float("inf")
