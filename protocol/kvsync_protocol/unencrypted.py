"""The bulk lane without encryption: how its frames prove who sent them once TLS has been left (UNENCRYPTED.md).

    TLS 1.3 handshake, both keys ─► 32 random bytes, serving to asking side ─► close_notify both ways ─► plain TCP

    frame, encoded body   followed by a seal, HMAC-SHA256(key, sender u8 ‖ number u64 BE ‖ message)
    plain chunk           as it is: its digest is signed

Bytes in, bytes out: nothing here knows a connection.
"""

from __future__ import annotations

import enum
import hmac
from typing import Final

from kvsync_protocol.errors import IntegrityError

ALPN: Final = "kvsync-bulk-unencrypted/1"
KEY_BYTES: Final = 32
SEAL_BYTES: Final = 32


class Side(enum.IntEnum):
    """Of a connection: who asks opened it, who serves accepted it."""

    ASKING = 1
    SERVING = 2

    @property
    def other(self) -> Side:
        return Side.SERVING if self is Side.ASKING else Side.ASKING


class Seals:
    """The seals of what one side of one connection sends, in order, under that connection's key.

    Each message has a number of its own, so a seal proves who sent a message, on which connection, and after which
    others: nothing can be made, changed, repeated, left out, or sent back. Sender and receiver each keep one.
    """

    __slots__ = ("_key", "_number", "_sender")

    def __init__(self, key: bytes, sender: Side) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes")
        self._key = key
        self._sender = sender
        self._number = 0

    def next(self, message: bytes | memoryview) -> bytes:
        """The seal of the next message."""
        place = self._sender.to_bytes(1) + self._number.to_bytes(8)
        self._number += 1
        return hmac.digest(self._key, b"".join((place, message)), "sha256")

    def check(self, message: bytes | memoryview, seal: bytes | memoryview) -> None:
        """That `message` comes next.

        Raises:
            IntegrityError: `bulk.seal`.
        """
        if not hmac.compare_digest(self.next(message), seal):
            raise IntegrityError("bulk.seal", "a message that the peer did not send, or not now")
