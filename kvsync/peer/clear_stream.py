"""A stream that has left TLS: nothing is hidden, and only messages are authenticated (UNENCRYPTED.md).

The connection is the one on which both sides have proved their keys in TLS, over which the key of the seals came.
Plain bytes are whatever arrives: their reader holds them against a signed digest before he believes them.
"""

from __future__ import annotations

import secrets
import socket
import struct
import time
from dataclasses import dataclass
from typing import Final

from OpenSSL import SSL

from kvsync.networks import Networks
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.deadline import Deadline
from kvsync.peer.rates import Throttle
from kvsync.peer.stream import PIECE, Stream, is_whole
from kvsync.peer.stream_errors import closed, stalled, stream_error
from kvsync.peer.tls_connection import TlsConnection
from kvsync_protocol.limits import KiB
from kvsync_protocol.unencrypted import KEY_BYTES, SEAL_BYTES, Seals, Side

_LOOK_S: Final = 0.25
"""How long the kernel waits for the other side before this one looks at its clock."""


@dataclass(frozen=True, slots=True)
class ClearOffer:
    """To which addresses a connection offers to leave TLS, and the context that does."""

    networks: Networks
    context: SSL.Context


def leave_tls(session: TlsConnection, side: Side, wait_s: float) -> bytes:
    """End TLS in both directions but not the connection under it; a fresh key that only the two sides know.

    The caller has checked whom `session` leads to, and closes the connection when this fails. Each side has `wait_s`.
    Raises as TlsConnection does.
    """
    key, end = bytearray(secrets.token_bytes(KEY_BYTES)), time.monotonic() + wait_s
    if side is Side.SERVING:
        session.write(bytes(key), wait_s, end)
    elif session.read_into(memoryview(key), wait_s, end) < KEY_BYTES:
        raise closed()
    session.leave(wait_s)
    return bytes(key)


class ClearStream(Stream):
    """What is left of a TLS connection after `leave_tls`; `side` is this one's."""

    is_encrypted = False
    seal_bytes = SEAL_BYTES
    near_piece = PIECE  # one call fills it; larger ones leave the CPU's cache
    near_buffer = 256 * KiB  # 9 % less CPU time per byte on loopback than as the kernel sizes it

    def __init__(
        self,
        connection: socket.socket,
        key: bytes,
        side: Side,
        *,
        stall_s: float,
        deadline: Deadline,
        throttle: Throttle | None = None,
    ) -> None:
        super().__init__(connection, stall_s=stall_s, deadline=deadline, throttle=throttle)
        self._out, self._in = Seals(key, side), Seals(key, side.other)
        # Waiting in the kernel and not in poll: a call moves as much as it is asked to, however it trickles in.
        connection.settimeout(None)
        look = struct.pack("ll", 0, int(_LOOK_S * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, look)

    def write_file(self, frame: bytes, chunk: ChunkFile) -> None:
        """As `Stream.write_file`; the file's bytes go from the page cache to the network without a copy."""
        end = self._end(len(frame) + chunk.size)
        frame += self._seal(frame)
        try:
            end += self._wait_turn(len(frame), "out")
            self._write(memoryview(frame), end, socket.MSG_MORE)
            at = 0
            while at < chunk.size:
                size = chunk.size - at if self.is_unlimited else min(self.piece, chunk.size - at)
                end += self._wait_turn(size, "out")
                self._send_file(chunk, at, size, end)
                at += size
        except OSError as error:
            raise stream_error(error) from error

    def _send_file(self, chunk: ChunkFile, at: int, size: int, end: float) -> None:
        to, last = self._connection.fileno(), time.monotonic()
        while size:
            try:
                sent = chunk.send(to, at, size)
            except BlockingIOError:
                sent = 0
            last = self._look(sent, last, end)
            at, size = at + sent, size - sent

    def _has_buffered(self) -> bool:
        return False

    def _read(self, view: memoryview, end: float) -> bool:
        at, last = 0, time.monotonic()
        try:
            while at < len(view):
                try:
                    got = self._connection.recv_into(view[at:], 0, socket.MSG_WAITALL)
                    if not got:
                        break
                except BlockingIOError:
                    got = 0
                last = self._look(got, last, end)
                at += got
        except OSError as error:
            raise stream_error(error) from error
        return is_whole(at, len(view))

    def _write(self, piece: memoryview, end: float, flags: int = 0) -> None:
        last = time.monotonic()
        while piece:
            try:
                sent = self._connection.send(piece, flags)
            except BlockingIOError:
                sent = 0
            last = self._look(sent, last, end)
            piece = piece[sent:]

    def _look(self, moved: int, last: float, end: float) -> float:
        """When something has last moved, unless that is too long ago, or all of it takes too long."""
        now = time.monotonic()
        if now > end:
            self._too_late()
        if moved:
            return now
        if self._broken.is_set():
            raise closed()
        if now > last + self._stall_s:
            raise stalled()
        return last

    def _seal(self, message: bytes | memoryview) -> bytes:
        return self._out.next(message)

    def _check(self, message: memoryview, seal: memoryview) -> None:
        self._in.check(message, seal)
