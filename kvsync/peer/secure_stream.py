"""A stream over TLS, which authenticates every byte and hides it."""

from __future__ import annotations

import contextlib
import socket

from kvsync.peer.deadline import Deadline
from kvsync.peer.rates import Throttle
from kvsync.peer.stream import Stream, is_whole
from kvsync.peer.tls_connection import TlsConnection
from kvsync_protocol.limits import KiB


class SecureStream(Stream):
    """A TLS connection after its handshake. TLS authenticates every byte, so messages need nothing more."""

    is_encrypted = True
    seal_bytes = 0
    near_piece = 2048 * KiB  # fewer changes between the stages than with PIECE: 6 % less CPU time per byte
    near_buffer = 512 * KiB  # 128 KiB takes 7 % longer on loopback, 1 MiB no less

    def __init__(
        self,
        connection: socket.socket,
        session: TlsConnection,
        *,
        stall_s: float,
        deadline: Deadline,
        throttle: Throttle | None = None,
    ) -> None:
        super().__init__(connection, stall_s=stall_s, deadline=deadline, throttle=throttle)
        self._session = session

    def await_alert(self, seconds: float) -> None:
        """Wait for the other side to refuse; silence for so long is none. Raises like `read_into`."""
        with contextlib.suppress(TimeoutError):
            self._session.read_into(memoryview(bytearray(1)), seconds, self._deadline.at)

    def _has_buffered(self) -> bool:
        return self._session.has_buffered()

    def _read(self, view: memoryview, end: float) -> bool:
        try:
            return is_whole(self._session.read_into(view, self._stall_s, end), len(view))
        except TimeoutError:
            self._too_late()

    def _write(self, piece: memoryview, end: float) -> None:
        try:
            self._session.write(piece, self._stall_s, end)
        except TimeoutError:
            self._too_late()

    def _seal(self, message: bytes | memoryview) -> bytes:
        return b""

    def _check(self, message: memoryview, seal: memoryview) -> None:
        """Nothing: what came through TLS came from the other side, in order."""
