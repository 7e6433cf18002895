"""The bulk lane's TLS 1.3: identities as in identity.py, on the OpenSSL that comes with `cryptography`.

It ciphers with what the CPU has, and reads straight into memory that it is given; Python's own does neither on most
systems of today (ADR 12). On the wire both are the same.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, TypeVar

from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate
from OpenSSL import SSL
from OpenSSL._util import ffi, lib
from OpenSSL.crypto import X509, X509Store

from kvsync.errors import KvsyncError
from kvsync.peer.identity import NodeIdentity, anchor, join_anchor
from kvsync.peer.stream_errors import closed, stream_error, tls_error
from kvsync_protocol import join
from kvsync_protocol.errors import TrustError
from kvsync_protocol.signing import PublicKey

T = TypeVar("T")
_PARTIAL_WRITE: Final = 1
"""SSL_MODE_ENABLE_PARTIAL_WRITE of openssl/ssl.h, which pyOpenSSL sets: each `send` would end after one record."""
_LOOK_S: Final = 0.25
"""How long the kernel waits to send before this side looks at its clock."""


def serving_context(identity: NodeIdentity, pins: Iterable[PublicKey], protocol: str) -> SSL.Context:
    """A context that completes handshakes with holders of the pinned keys only."""
    return _serving(identity, map(anchor, pins), protocol)


def join_context(identity: NodeIdentity) -> SSL.Context:
    """A context in which any key may come, and proves itself: for the join lane alone (KEYS 5)."""
    return _serving(identity, [join_anchor()], join.ALPN)


def asking_context(identity: NodeIdentity, pins: Iterable[PublicKey], *protocols: str) -> SSL.Context:
    """A context whose handshake proves that the other side holds one of the pins.

    It offers the protocols in this order.
    """
    context = _context(SSL.TLS_CLIENT_METHOD, identity, map(anchor, pins))
    context.set_alpn_protos([protocol.encode() for protocol in protocols])
    return context


def _serving(identity: NodeIdentity, anchors: Iterable[Certificate], protocol: str) -> SSL.Context:
    context = _context(SSL.TLS_SERVER_METHOD, identity, anchors)
    wanted = protocol.encode()
    context.set_alpn_select_callback(lambda _, offered: wanted if wanted in offered else SSL.NO_OVERLAPPING_PROTOCOLS)
    # A resumed session would outlive its key's removal from the pins: none is kept, and no ticket holds one.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET)
    return context


def _context(method: int, identity: NodeIdentity, anchors: Iterable[Certificate]) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
    context.clear_mode(_PARTIAL_WRITE)
    context.use_certificate(identity.certificate)
    context.use_privatekey(identity.private)
    store = context.get_cert_store() or X509Store()  # never None: the context has just been made
    for certificate in anchors:
        store.add_cert(X509.from_cryptography(certificate))
    return context


class _Session(SSL.Connection):
    """With what it takes to read without a copy: 0.2 CPU seconds per GiB less than `recv_into`, which makes one."""

    @property
    def pointer(self) -> Any:
        """What functions of `lib` know it by."""
        return self._ssl

    def failure(self, result: int) -> SSL.Error:
        """Why a function of `lib` has returned `result`, not above zero."""
        try:
            self._raise_ssl_error(self._ssl, result)
        except SSL.Error as error:
            return error
        raise AssertionError("OpenSSL fails without an error")


class TlsConnection:
    """TLS over a connected socket, which stays the caller's: shutting that down wakes the one thread that uses this.

    What waits for the other side takes at most `wait_s` seconds for it to move anything. It raises:
        TimeoutError: that, or `end`, of time.monotonic(), is past.
        UnavailableError: `peer.closed`.
        TrustError: `peer.identity`, `peer.refused`.
    """

    def __init__(self, context: SSL.Context, connection: socket.socket, *, serving: bool) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, int(_LOOK_S * 1e6)))
        self._session = _Session(context, connection)
        self._socket = connection
        self._poller = select.poll()
        if serving:
            self._session.set_accept_state()
        else:
            self._session.set_connect_state()

    def getpeercert(self, binary_form: Literal[True]) -> bytes | None:
        """The other side's certificate, DER."""
        certificate = self._session.get_peer_certificate(as_cryptography=True)
        return certificate.public_bytes(Encoding.DER) if certificate is not None else None

    def selected_alpn_protocol(self) -> str | None:
        return self._session.get_alpn_proto_negotiated().decode() or None

    def handshake(self, wait_s: float) -> None:
        """All of it within `wait_s`. Whom it has led to is for the caller to compare."""
        self._until_done(self._session.do_handshake, time.monotonic() + wait_s)

    def leave(self, wait_s: float) -> None:
        """Take each side's last word in TLS, so that nobody else can have ended it. The socket stays open."""
        end = time.monotonic() + wait_s
        while not self._until_done(self._session.shutdown, end):
            pass  # said; the second call takes the other side's

    def has_buffered(self) -> bool:
        """Whether bytes that have left the socket wait to be read."""
        return bool(self._session.pending())

    def read_into(self, view: memoryview, wait_s: float, end: float) -> int:
        """Fill `view`; how much of it came, less than all only when the other side ended the connection."""
        self._socket.setblocking(False)
        size, at, until = len(view), 0, None
        read, pointer = lib.SSL_read, self._session.pointer
        # Let go of in any case: a memoryview with a reader that dies in a cycle of a traceback takes CPython with it.
        with ffi.from_buffer(view) as place:
            while at < size:
                # Once per TLS record, 16 KiB, beside other streams that want the interpreter: nothing to spare.
                got = read(pointer, place + at, size - at)
                if got > 0:
                    at += got
                    until = None
                    continue
                error = self._session.failure(got)
                if _is_end(error):
                    break
                until = until or min(time.monotonic() + wait_s, end)
                self._wait(error, until)
        return at

    def write(self, piece: bytes | memoryview, wait_s: float, end: float) -> None:
        """Send all of `piece`. The thread waits in the kernel, in one call for many records."""
        self._socket.setblocking(True)
        while True:
            try:
                self._session.send(piece)
            except SSL.Error as error:
                self._wait(error, min(time.monotonic() + wait_s, end))  # also when a signal ended the call
            else:
                return

    def _until_done(self, step: Callable[[], T], end: float) -> T:
        self._socket.setblocking(False)
        while True:
            try:
                return step()
            except SSL.Error as error:
                self._wait(error, end)

    def _wait(self, error: SSL.Error, end: float) -> None:
        """Until the socket can do what `error` says is wanted."""
        if isinstance(error, SSL.WantReadError | SSL.WantWriteError):
            events = select.POLLIN if isinstance(error, SSL.WantReadError) else select.POLLOUT
            self._poller.register(self._socket, events)
            left = end - time.monotonic()
            if left <= 0 or not self._poller.poll(left * 1000):
                raise TimeoutError from error
        else:
            raise _named(error) from error


def _named(error: SSL.Error) -> KvsyncError | TrustError:
    if _is_end(error):
        return closed()
    if isinstance(error, SSL.SysCallError):
        return stream_error(OSError(error.args[0], os.strerror(error.args[0])))
    reasons = [reason for _, _, reason in error.args[0]] if error.args else []
    return tls_error(reasons[0] if reasons else type(error).__name__)


def _is_end(error: SSL.Error) -> bool:
    """Whether the other side has ended the connection, with a last word or without."""
    return isinstance(error, SSL.ZeroReturnError) or error.args == (-1, "Unexpected EOF")
