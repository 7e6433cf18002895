"""The ALPN names in a TLS ClientHello: enough to choose a lane before the handshake (RFC 8446 4.1.2).

Pure: bytes in, names out. It decides nothing about security; the handshake that follows reads the
same bytes again, by OpenSSL, and checks what was negotiated.
"""

from __future__ import annotations

from typing import Final

from kvsync_protocol.errors import MalformedError

RECORD_HEADER_BYTES: Final = 5
MAX_RECORD_BYTES: Final = RECORD_HEADER_BYTES + 2**14
_HANDSHAKE_RECORD: Final = 22
_CLIENT_HELLO: Final = 1
_ALPN_EXTENSION: Final = 16


def record_bytes(header: bytes) -> int:
    """Length of the whole first record, from its first RECORD_HEADER_BYTES bytes.

    Raises:
        MalformedError: `tls.record` unless a TLS handshake record of a legal size begins here.
    """
    if len(header) < RECORD_HEADER_BYTES or header[0] != _HANDSHAKE_RECORD or header[1] != 3:
        raise MalformedError("tls.record", "not the start of a TLS connection")
    length = int.from_bytes(header[3:5], "big")
    if not 4 <= length <= 2**14:
        raise MalformedError("tls.record", "a TLS record of an impossible size")
    return RECORD_HEADER_BYTES + length


def offered_protocols(record: bytes) -> tuple[bytes, ...]:
    """ALPN names in the client's order, none when it offers none.

    `record` is exactly one TLS record that holds exactly one ClientHello, which is how every
    client of this protocol sends it.

    Raises:
        MalformedError: `tls.record`, `tls.client_hello`.
    """
    if record_bytes(record[:RECORD_HEADER_BYTES]) != len(record):
        raise MalformedError("tls.record", "not exactly one TLS record")
    message = _Reader(record[RECORD_HEADER_BYTES:])
    if message.number(1) != _CLIENT_HELLO:
        raise MalformedError("tls.client_hello", "the first message is not a ClientHello")
    hello = _Reader(message.vector(3))
    message.done()
    hello.take(2 + 32)  # legacy_version, random
    for width in (1, 2, 1):  # session id, cipher suites, compression methods
        hello.vector(width)
    extensions = _Reader(hello.vector(2))
    hello.done()
    found: tuple[bytes, ...] | None = None
    while extensions.left:
        kind, body = extensions.number(2), extensions.vector(2)
        if kind == _ALPN_EXTENSION:
            if found is not None:
                raise MalformedError("tls.client_hello", "two ALPN extensions")
            found = _names(body)
    return found or ()


def _names(body: bytes) -> tuple[bytes, ...]:
    outer = _Reader(body)
    names = _Reader(outer.vector(2))
    outer.done()
    found = []
    while names.left:
        name = names.vector(1)
        if not name:
            raise MalformedError("tls.client_hello", "an empty ALPN name")
        found.append(name)
    return tuple(found)


class _Reader:
    """Takes bytes from the front and never more than there are."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise MalformedError("tls.client_hello", "a length points past the end")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def vector(self, width: int) -> bytes:
        return self.take(self.number(width))

    def done(self) -> None:
        if self.left:
            raise MalformedError("tls.client_hello", "bytes are left over")
