"""TLS over a connected socket: exact reads straight into memory that is given, writes of many records at once.

Contexts come from tls_context.py, which says why this is not Python's own TLS.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TypeVar

from OpenSSL import SSL
from OpenSSL._util import ffi, lib
from OpenSSL.crypto import FILETYPE_ASN1, dump_certificate

from kvsync.errors import KvsyncError
from kvsync.peer.stream_errors import closed, stream_error, tls_error
from kvsync_protocol.errors import TrustError
from kvsync_protocol.limits import KiB

T = TypeVar("T")
_CALL_BYTES: Final = 256 * KiB
"""Sent by one call: some records, but not so many that a slow taker keeps this side from its clock."""
_LOOK_S: Final = 0.25
"""How long the kernel waits to send before this side looks at its clock."""


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
        certificate = self._session.get_peer_certificate()
        return dump_certificate(FILETYPE_ASN1, certificate) if certificate is not None else None

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
        left = memoryview(piece)
        while left:
            try:
                self._session.send(left[:_CALL_BYTES])
            except SSL.Error as error:
                self._wait(error, min(time.monotonic() + wait_s, end))  # also when a signal ended the call
                continue
            left = left[_CALL_BYTES:]
            if time.monotonic() > end:
                raise TimeoutError

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
