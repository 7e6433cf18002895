"""The bulk lane's asking side: one blocking connection that fetches or sends chunks (SPEC 8.2).

Bytes land in a buffer of the connection's own, one chunk large, whatever a peer claims. Nothing is
verified here; who asked knows the digest.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterable
from typing import Final

from kvsync.errors import UnavailableError, UsageError
from kvsync.keys import Peer, split_address
from kvsync.pack.codec import Codec
from kvsync.pack.shape import ChunkShape
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import check_peer
from kvsync.peer.rates import Throttle
from kvsync.peer.remote_errors import bulk_error
from kvsync.peer.stream import SecureStream, buffer, stream_error
from kvsync_protocol.bulk import (
    ALPN,
    MAX_WIRE_BYTES,
    REPLY_BYTES,
    BulkReply,
    BulkRequest,
    Encoding,
    Status,
    Verb,
)
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import IntegrityError, MalformedError, TrustError
from kvsync_protocol.limits import MAX_CHUNK_BYTES

CONNECT_S: Final = 10.0
_ALERT_S: Final = 1.0
"""Longest wait for a refusal; it comes within a round trip."""


class BulkConnection:
    """One stream of chunks. For one thread, but `abort` may come from any."""

    def __init__(
        self,
        peer: Peer,
        address: str,
        context: ssl.SSLContext,
        *,
        stall_s: float,
        deadline: Deadline,
        throttle: Throttle | None = None,
    ) -> None:
        self.throttle = throttle
        self._peer = peer
        self._address = address
        self._context = context
        self._stall_s = stall_s
        self._deadline = deadline
        self._stream: SecureStream | None = None
        self._opening: socket.socket | None = None
        self._aborted = False
        self._asked: BulkRequest | None = None
        self._chunk = buffer(MAX_CHUNK_BYTES)
        self._body: memoryview | None = None  # for encoded bodies only
        self._codec = Codec()

    def open(self) -> None:
        """Connect and prove both identities.

        Raises:
            UnavailableError: `peer.closed`, `peer.stalled`, `peer.deadline`.
            TrustError: `peer.identity`, `peer.protocol`.
        """
        self.close()
        limit = self._deadline.remaining(min(CONNECT_S, self._stall_s))
        try:
            secured = self._secured(self._connected(limit))
        except OSError as error:
            raise stream_error(error) from error
        try:
            check_peer(secured, self._peer.keys, ALPN)
        except BaseException:
            secured.close()
            raise
        self._stream = SecureStream(secured, stall_s=self._stall_s, deadline=self._deadline, throttle=self.throttle)
        if self._aborted:
            self.abort()

    def _connected(self, limit: float) -> socket.socket:
        """As socket.create_connection, which `abort` could not end."""
        host, port = split_address(self._address)
        failure: OSError = TimeoutError()
        for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(limit)
                self._begin(connection)
                connection.connect(place)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                failure = error
            except BaseException:
                connection.close()
                raise
            else:
                return connection
            connection.close()
        raise failure

    def _secured(self, connection: socket.socket) -> ssl.SSLSocket:
        secured = self._context.wrap_socket(connection, do_handshake_on_connect=False)
        try:
            self._begin(secured)
            secured.do_handshake()
        except BaseException:
            secured.close()
            raise
        return secured

    def _begin(self, connection: socket.socket) -> None:
        """From here on `abort` ends it. Raises UnavailableError `peer.closed` when that has happened."""
        self._opening = connection
        if self._aborted:
            raise UnavailableError("peer.closed", "the connection was given up")

    def refusal(self) -> TrustError | None:
        """Why the peer wants nothing of this node, if that is so.

        The control lane's server ends a refused handshake without a word; the bulk lane's says why.
        """
        try:
            self.open()
            self._opened().await_alert(_ALERT_S)
        except TrustError as error:
            return error if error.code == "peer.refused" else None
        except UnavailableError:
            return None
        finally:
            self.close()
        return None

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    def ask(self, artifact: ArtifactId, index: int, encoding: Encoding) -> None:
        """Request a chunk; `receive` takes the answer, before anything else is asked for or sent."""
        request = BulkRequest(Verb.GET, artifact, index, encoding)
        self._opened().write(request.encode())
        self._asked = request

    def receive(self, size: int, shape: ChunkShape | None = None) -> tuple[Iterable[memoryview], int]:
        """The requested chunk, of `size` bytes as signed, in pieces, and its bytes on the wire.

        A piece is valid until the next is asked for, and read from the network only then; all must be taken.
        `shape` is what PLANES is decoded by.

        Raises:
            UnavailableError: `peer.closed`, `peer.stalled`, `peer.deadline`, `peer.busy`, `peer.failed`.
            NotFoundError: `peer.chunk_gone`.
            MalformedError: `bulk.frame`, `bulk.length`, `bulk.encoding`, `codec.frame`, `codec.window`.
            IntegrityError: `bulk.size`, `codec.size`.
        """
        reply, request = self._reply()
        index = request.index
        if reply.status is not Status.OK:
            raise bulk_error(self._peer.name, reply.status, index)
        if reply.encoding not in (Encoding.IDENTITY, request.encoding):
            raise MalformedError("bulk.encoding", f"chunk {index} came in an encoding that was not asked for")
        view = self._chunk[:size]
        if reply.encoding is Encoding.IDENTITY:
            if reply.length != size:
                raise IntegrityError(
                    "bulk.size", f"{reply.length} bytes were sent for chunk {index} of {size}", index=index
                )
            return self._opened().pieces(size), size
        if self._body is None:
            self._body = buffer(MAX_WIRE_BYTES)
        body = self._body[: reply.length]
        self._opened().read_into(body)
        self._codec.decode(body, reply.encoding, view, shape)
        return (view,), reply.length

    def send(
        self,
        artifact: ArtifactId,
        index: int,
        data: memoryview,
        encoding: Encoding,
        shape: ChunkShape | None = None,
    ) -> int:
        """Send a chunk; `confirm` takes the answer. Returns its bytes on the wire.

        `shape` is what PLANES is encoded by.
        """
        encoding, body = self._codec.encode(data, encoding, shape)
        request = BulkRequest(Verb.PUT, artifact, index, encoding, len(body))
        self._opened().write(request.encode(), body)
        self._asked = request
        return len(body)

    def confirm(self) -> None:
        """Wait until the chunk just sent is stored there.

        Raises:
            UnavailableError: as `receive`; PolicyError `peer.chunk_refused`; StoreError `store.full`;
            IntegrityError `integrity.chunk`.
        """
        reply, request = self._reply()
        if reply.length:
            raise MalformedError("bulk.length", "an answer to a PUT has no body")
        if reply.status is not Status.OK:
            raise bulk_error(self._peer.name, reply.status, request.index)

    def abort(self) -> None:
        """Break the connection for good, waking the thread that uses it."""
        self._aborted = True
        opening, stream = self._opening, self._stream
        if stream is not None:
            stream.abort()
        elif opening is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(opening, socket.SHUT_RDWR)

    def close(self) -> None:
        """A request without an answer is forgotten; `open` may be called again."""
        self._asked = None
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _reply(self) -> tuple[BulkReply, BulkRequest]:
        stream, asked = self._opened(), self._asked
        if asked is None:
            raise UsageError("peer.nothing_asked", "nothing was asked for on this connection")
        frame = bytearray(REPLY_BYTES)
        stream.read_into(memoryview(frame))
        self._asked = None
        return BulkReply.decode(frame), asked

    def _opened(self) -> SecureStream:
        if self._stream is None:
            raise UnavailableError("peer.closed", "the connection is not open")
        return self._stream
