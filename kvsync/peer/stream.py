"""Exact reads and writes on a connection, each with a stall timeout, a least rate and a deadline.

What both kinds have in common: `SecureStream` (secure_stream.py) is TLS, `ClearStream` (clear_stream.py) is not.
Knows nothing of what the bytes mean.
"""

from __future__ import annotations

import asyncio.trsock
import contextlib
import mmap
import select
import socket
import struct
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, NoReturn

from kvsync.errors import UnavailableError
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.deadline import Deadline
from kvsync.peer.rates import Direction, Throttle
from kvsync.peer.stream_errors import closed, stalled, stream_error
from kvsync_protocol.limits import KiB

LEAST_RATE: Final = 32 * KiB
"""Bytes per second. Slower is as good as stalled: a byte now and then must not hold a connection."""
NEAR_S: Final = 0.0002
"""Up to this round-trip time a line is near: this host, or one beside it."""
_MIN_RTT_AT: Final = 148
"""Offset of tcpi_min_rtt, microseconds, in Linux's struct tcp_info."""
PIECE: Final = 512 * KiB
"""Bytes that go through network, hash and file together; each piece has a stall timeout and a turn of its own."""
FRAME_ROOM: Final = 4 * KiB
"""What is before the first piece of a chunk; a page, so that pieces are aligned."""


def buffer(size: int) -> memoryview:
    """`size` bytes that take no memory before they are used."""
    return memoryview(mmap.mmap(-1, size))


class Stream(ABC):
    """One connection whose other side is known. Not for several threads, but `abort` may come from any.

    A *message*, a frame or an encoded body, is authenticated as a whole before anybody sees it. What goes through
    `write`, `write_file`, `read_into` and `pieces` is whatever the kind of connection makes of it.
    """

    is_encrypted: bool
    seal_bytes: int
    """Bytes that follow each message to authenticate it."""
    near_piece: int
    """PIECE of a near line that has no limit."""
    near_buffer: int
    """On a near line so small a send buffer fills it, and its bytes are still in the CPU's cache when the other side
    takes them. Farther away the kernel sizes it."""

    def __init__(
        self, connection: socket.socket, *, stall_s: float, deadline: Deadline, throttle: Throttle | None = None
    ) -> None:
        self.throttle = throttle
        self._broken = threading.Event()
        self._connection = connection
        self._stall_s = stall_s
        self._deadline = deadline
        self._piece = buffer(FRAME_ROOM + max(PIECE, self.near_piece))
        self._is_near = round_trip_s(connection) < NEAR_S
        if self._is_near:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.near_buffer)

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no rate to keep to, as of now."""
        return self.throttle is None or self.throttle.unlimited

    @property
    def piece(self) -> int:
        """Bytes to move at once, as of now."""
        if self.throttle is None or self.throttle.unlimited:
            return self.near_piece if self._is_near else PIECE
        return self.throttle.piece(PIECE)

    # what the kinds differ in

    @abstractmethod
    def _has_buffered(self) -> bool:
        """Whether bytes that have left the socket wait to be read."""

    @abstractmethod
    def _read(self, view: memoryview, end: float) -> bool:
        """Fill `view` by `end`, of time.monotonic(); False when the other side ended the connection before."""

    @abstractmethod
    def _write(self, piece: memoryview, end: float) -> None:
        """Send all of `piece` by `end`. May raise OSError, as `_read` may not."""

    @abstractmethod
    def _seal(self, message: bytes | memoryview) -> bytes:
        """What follows the next message that goes out."""

    @abstractmethod
    def _check(self, message: memoryview, seal: memoryview) -> None:
        """Raises IntegrityError `bulk.seal` unless this is the next message of the other side."""

    # reading

    def wait(self, wake: int) -> bool:
        """Until there is something to read; False when the descriptor `wake` became readable first.

        Raises:
            UnavailableError: `peer.stalled`, `peer.deadline`.
        """
        if self._has_buffered():
            return True
        poller = select.poll()
        poller.register(self._connection, select.POLLIN)
        poller.register(wake, select.POLLIN)
        ready = poller.poll(self._deadline.remaining(self._stall_s) * 1000)
        if not ready:
            raise stalled()
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
                raise closed()
            at += len(piece)

    def pieces(self, size: int) -> Iterator[memoryview]:
        """The next `size` bytes, each piece valid until the next is asked for. Raises like `read_into`."""
        end = self._end(size)
        while size:
            view = self._piece[: min(size, self.piece)]
            end += self._wait_turn(len(view), "in")
            if not self._read(view, end):
                raise closed()
            size -= len(view)
            yield view

    def read_frame(self, size: int) -> bytes | None:
        """The next message, of `size` bytes, or None when the other side ended the connection before it.

        Raises like `read_message`.
        """
        frame = memoryview(bytearray(size + self.seal_bytes))
        if not self._read(frame, self._end(len(frame))):
            return None
        self._check(frame[:size], frame[size:])
        return bytes(frame[:size])

    def read_message(self, view: memoryview) -> None:
        """The next message, as long as `view`.

        Raises like `read_into`, and:
            IntegrityError: `bulk.seal` when the other side has not sent it.
        """
        seal = memoryview(bytearray(self.seal_bytes))
        self.read_into(view)
        self.read_into(seal)
        self._check(view, seal)

    # writing

    def write(self, *parts: bytes | memoryview) -> None:
        """Send all of every part. Raises like `read_into`."""
        end = self._end(sum(len(part) for part in parts))
        try:
            for part in parts:
                left = memoryview(part)
                while left:
                    piece = left[: self.piece]
                    end += self._wait_turn(len(piece), "out")
                    self._write(piece, end)
                    left = left[len(piece) :]
        except OSError as error:
            raise stream_error(error) from error

    def write_frame(self, frame: bytes, body: bytes | memoryview = b"") -> None:
        """Send a message, and another one unless it is empty. Raises like `write`."""
        frame += self._seal(frame)
        self.write(frame, *((body, self._seal(body)) if body else ()))

    def write_file(self, frame: bytes, chunk: ChunkFile) -> None:
        """Send a message, then all of a file as plain bytes.

        Raises like `write`, and as `ChunkFile.pieces`; what of the file was sent then is no whole one.
        """
        frame += self._seal(frame)
        end = self._end(len(frame) + chunk.size)
        # The frame goes out in one write with the first piece: one TLS record and one wake-up less.
        begin = FRAME_ROOM - len(frame)
        self._piece[begin:FRAME_ROOM] = frame
        try:
            for piece in chunk.pieces(self._piece[FRAME_ROOM:], self.piece):
                view = self._piece[begin : FRAME_ROOM + len(piece)]
                end += self._wait_turn(len(view), "out")
                self._write(view, end)
                begin = FRAME_ROOM
        except OSError as error:
            raise stream_error(error) from error

    # ending

    def abort(self) -> None:
        """Break the connection, waking whoever waits on it."""
        self._broken.set()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

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
        raise stalled()


def is_whole(got: int, size: int) -> bool:
    """False when the other side ended the connection before the first byte. Raises UnavailableError `peer.closed`."""
    if 0 < got < size:
        raise UnavailableError("peer.closed", "the peer closed the connection in the middle of a message")
    return got == size


def round_trip_s(connection: socket.socket | asyncio.trsock.TransportSocket) -> float:
    """The kernel's least measured round-trip time (tcp_info.tcpi_min_rtt), which a busy CPU does not lengthen.

    Infinity where there is no telling.
    """
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
        return float(struct.unpack_from("=I", info, _MIN_RTT_AT)[0]) / 1e6
    except (OSError, struct.error):
        return float("inf")
