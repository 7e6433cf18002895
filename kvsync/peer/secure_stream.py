"""A stream over TLS, which authenticates every byte and hides it."""

from __future__ import annotations

import ssl
import time

from kvsync.peer.deadline import Deadline
from kvsync.peer.rates import Throttle
from kvsync.peer.stream import Stream, is_whole
from kvsync.peer.stream_errors import stream_error
from kvsync_protocol.limits import KiB


class SecureStream(Stream):
    """A TLS connection after its handshake. TLS authenticates every byte, so messages need nothing more."""

    is_encrypted = True
    seal_bytes = 0
    near_piece = 2048 * KiB  # fewer changes between the stages than with PIECE: 6 % less CPU time per byte
    near_buffer = 128 * KiB  # 8 % more on loopback
    _connection: ssl.SSLSocket

    def __init__(
        self, connection: ssl.SSLSocket, *, stall_s: float, deadline: Deadline, throttle: Throttle | None = None
    ) -> None:
        super().__init__(connection, stall_s=stall_s, deadline=deadline, throttle=throttle)
        connection.settimeout(stall_s)

    def await_alert(self, seconds: float) -> None:
        """Wait for the other side to refuse; silence for so long is none. Raises like `read_into`."""
        self._connection.settimeout(seconds)
        try:
            self.read_frame(1)
        finally:
            self._connection.settimeout(self._stall_s)

    def _has_buffered(self) -> bool:
        return bool(self._connection.pending())

    def _read(self, view: memoryview, end: float) -> bool:
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
        return is_whole(at, size)

    def _write(self, piece: memoryview, end: float) -> None:
        self._connection.sendall(piece)
        if time.monotonic() > end:
            self._too_late()

    def _seal(self, message: bytes | memoryview) -> bytes:
        return b""

    def _check(self, message: memoryview, seal: memoryview) -> None:
        """Nothing: what came through TLS came from the other side, in order."""
