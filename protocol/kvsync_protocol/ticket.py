"""Tickets: all that another host needs to join, in one word (KEYS 4).

    kvt1_ ‖ base64url( identity 32 ‖ secret 16 ‖ expires u40 ‖ count u8 ‖ addresses ‖ registry ‖ check 4 )
    address   04 ‖ IPv4 4 ‖ port u16   06 ‖ IPv6 16 ‖ port u16   00 ‖ length u8 ‖ host ‖ port u16
    registry  length u8 ‖ address as text, or nothing

The check tells a typing error from a ticket that is not good any more; it is no protection. Who holds the
ticket may join once, so it is a secret until then.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kvsync_protocol.digest import hash_record
from kvsync_protocol.errors import MalformedError, VersionError
from kvsync_protocol.signing import PublicKey, SigningKey

PREFIX: Final = "kvt"
VERSION: Final = 1
SECRET_BYTES: Final = 16
MAX_ADDRESSES: Final = 8
MAX_TICKET_CHARS: Final = 4096
_CHECK_BYTES: Final = 4
_TEXT: Final = re.compile(r"kvt([0-9]{1,3})_([A-Za-z0-9_-]+)", re.ASCII)
_HOST: Final = re.compile(r"[0-9A-Za-z.:_%-]{1,255}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ticket:
    """`addresses` are `host:port` texts in the order to try; `expires` is Unix seconds by the inviter's clock.

    `Ticket.parse(str(t)) == t`; an address is written in its shortest form.

    Raises:
        MalformedError: `ticket.address`, `ticket.syntax`.
    """

    identity: PublicKey
    secret: bytes = field(repr=False)
    expires: int
    addresses: tuple[str, ...]
    registry: str | None = None

    def __post_init__(self) -> None:
        if len(self.secret) != SECRET_BYTES:
            raise MalformedError("ticket.syntax", f"a ticket's secret has {SECRET_BYTES} bytes")
        if not 0 <= self.expires < 2**40:
            raise MalformedError("ticket.syntax", "no time that a ticket can have")
        if not 1 <= len(self.addresses) <= MAX_ADDRESSES:
            raise MalformedError("ticket.address", f"a ticket has 1 to {MAX_ADDRESSES} addresses")
        for address in (*self.addresses, *([self.registry] if self.registry is not None else [])):
            _pack_address(address)

    @property
    def key(self) -> SigningKey:
        """What proves that the secret is known; the inviter keeps only its public half."""
        return SigningKey(hash_record("kvsync/ticket/1", [self.secret]).raw)

    def __str__(self) -> str:
        registry = (self.registry or "").encode()
        body = b"".join(
            (
                self.identity.raw,
                self.secret,
                self.expires.to_bytes(5, "big"),
                bytes([len(self.addresses)]),
                *map(_pack_address, self.addresses),
                bytes([len(registry)]),
                registry,
            )
        )
        return f"{PREFIX}{VERSION}_{base64.urlsafe_b64encode(body + _check(body)).decode().rstrip('=')}"

    @classmethod
    def parse(cls, text: str) -> Ticket:
        """Raises:
        VersionError: `version.ticket`.
        MalformedError: `ticket.syntax`, `ticket.check` for one that was cut short or edited, `ticket.*`, `key.weak`.
        """
        found = _TEXT.fullmatch(text) if len(text) <= MAX_TICKET_CHARS else None
        if found is None:
            raise MalformedError("ticket.syntax", "not a ticket", hint="paste all of what kvsync invite printed")
        if int(found.group(1)) != VERSION:
            raise VersionError(
                "version.ticket", f"a ticket of version {int(found.group(1))}, this host reads {VERSION}"
            )
        body = _decode(found.group(2))
        if len(body) <= _CHECK_BYTES or _check(body[:-_CHECK_BYTES]) != body[-_CHECK_BYTES:]:
            raise MalformedError(
                "ticket.check",
                "the ticket is incomplete or was changed",
                hint="paste all of what kvsync invite printed",
            )
        ticket = _read(_Reader(body[:-_CHECK_BYTES]))
        if str(ticket) != text:
            raise MalformedError("ticket.syntax", "not a ticket in its one spelling")
        return ticket


def _check(body: bytes) -> bytes:
    return hash_record("kvsync/ticket/check/1", [body]).raw[:_CHECK_BYTES]


def _decode(text: str) -> bytes:
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise MalformedError("ticket.check", "the ticket is incomplete") from error


def _pack_address(address: str) -> bytes:
    """Raises MalformedError `ticket.address`."""
    host, _, digits = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    if not digits.isascii() or not digits.isdigit() or len(digits) > 5 or not 0 < int(digits) < 65536:
        raise MalformedError("ticket.address", "an address ends in a port")
    port = int(digits).to_bytes(2, "big")
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        number = None
    if (":" in host) != bracketed or not _HOST.fullmatch(host):
        raise MalformedError("ticket.address", "not host:port or [ipv6]:port")
    if number is None or "%" in host:
        return bytes([0, len(host)]) + host.encode() + port
    return bytes([number.version]) + number.packed + port


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise MalformedError("ticket.syntax", "a length points past the ticket's end")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big")

    def text(self) -> str:
        try:
            return self.take(self.number(1)).decode("ascii")
        except UnicodeDecodeError as error:
            raise MalformedError("ticket.address", "an address is not ASCII") from error

    def done(self) -> None:
        if self._at < len(self._data):
            raise MalformedError("ticket.syntax", "bytes are left over")


def _read(reader: _Reader) -> Ticket:
    identity, secret, expires = PublicKey(reader.take(32)), reader.take(SECRET_BYTES), reader.number(5)
    addresses = tuple(_addresses(reader, reader.number(1)))
    registry = reader.text() or None
    reader.done()
    return Ticket(identity, secret, expires, addresses, registry)


def _addresses(reader: _Reader, count: int) -> Iterator[str]:
    if count > MAX_ADDRESSES:
        raise MalformedError("ticket.address", f"more than {MAX_ADDRESSES} addresses")
    for _ in range(count):
        kind = reader.number(1)
        if kind == 0:
            host = reader.text()
        elif kind in (4, 6):
            host = str(ipaddress.ip_address(reader.take(4 if kind == 4 else 16)))
        else:
            raise MalformedError("ticket.address", "an address of an unknown kind")
        port = reader.number(2)
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
