"""The bulk lane's asking side: one blocking connection that fetches or sends chunks (SPEC 8.2).

Bytes land in a buffer of the connection's own, one chunk large, whatever a peer claims. Nothing is
verified here; who asked knows the digest.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from OpenSSL import SSL

from kvsync.errors import UnavailableError, UsageError
from kvsync.keys import Peer, split_address
from kvsync.pack.codec import Codec
from kvsync.pack.shape import ChunkShape
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.chunk_sending import send_chunk
from kvsync.peer.clear_stream import ClearOffer, ClearStream, leave_tls
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import check_peer
from kvsync.peer.place import host_of
from kvsync.peer.rates import Throttle
from kvsync.peer.remote_errors import bulk_error
from kvsync.peer.secure_stream import SecureStream
from kvsync.peer.stream import Stream, buffer
from kvsync.peer.stream_errors import closed, stream_error
from kvsync.peer.tls_connection import TlsConnection
from kvsync_protocol import bulk, unencrypted
from kvsync_protocol.bulk import (
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
from kvsync_protocol.unencrypted import Side

CONNECT_S: Final = 10.0
_ALERT_S: Final = 1.0
"""Longest wait for a refusal; it comes within a round trip."""

log = logging.getLogger(__name__)


class BulkConnection:
    """One stream of chunks. For one thread, but `abort` may come from any."""

    def __init__(
        self,
        peer: Peer,
        address: str,
        context: SSL.Context,
        *,
        stall_s: float,
        deadline: Deadline,
        throttle: Throttle | None = None,
        clear: ClearOffer | None = None,
    ) -> None:
        self.throttle = throttle
        self.is_encrypted = True
        """Whether it is, or was when it was last open."""
        self._clear = clear
        self._host = ""
        self._peer = peer
        self._address = address
        self._context = context
        self._stall_s = stall_s
        self._deadline = deadline
        self._stream: Stream | None = None
        self._opening: socket.socket | None = None
        self._aborted = False
        self._asked: deque[BulkRequest] = deque()
        self._chunk = buffer(MAX_CHUNK_BYTES)
        self._body: memoryview | None = None  # for encoded bodies only
        self._codec = Codec()

    def open(self) -> None:
        """Connect and prove both identities. Leaves TLS then where both sides' settings say so.

        Raises:
            UnavailableError: `peer.closed`, `peer.stalled`, `peer.deadline`.
            TrustError: `peer.identity`, `peer.protocol`.
        """
        self.close()
        limit = self._deadline.remaining(min(CONNECT_S, self._stall_s))
        try:
            connection = self._connected(limit)
            try:
                self._stream = self._streaming(connection, limit)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            raise stream_error(error) from error
        self.is_encrypted = self._stream.is_encrypted
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
                self._host = host_of(place)
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

    def _streaming(self, connection: socket.socket, limit: float) -> Stream:
        context, protocols = self._context, [bulk.ALPN]
        if self._clear is not None and self._clear.networks.hold(self._host):
            context, protocols = self._clear.context, [unencrypted.ALPN, bulk.ALPN]
        session = TlsConnection(context, connection, serving=False)
        session.handshake(limit)
        check_peer(session, self._peer.keys, *protocols)
        stall_s, deadline, throttle = self._stall_s, self._deadline, self.throttle
        if session.selected_alpn_protocol() != unencrypted.ALPN:
            return SecureStream(connection, session, stall_s=stall_s, deadline=deadline, throttle=throttle)
        key = leave_tls(session, Side.ASKING, limit)
        log.warning("chunks go UNENCRYPTED to and from %s at %s", self._peer.name, self._address)
        return ClearStream(connection, key, Side.ASKING, stall_s=stall_s, deadline=deadline, throttle=throttle)

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
            if isinstance(self._stream, SecureStream):
                self._stream.await_alert(_ALERT_S)
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
        """Request a chunk; `receive` takes the answers, in order."""
        request = BulkRequest(Verb.GET, artifact, index, encoding)
        self._opened().write_frame(request.encode())
        self._asked.append(request)

    def receive(
        self, size: int, shape: ChunkShape | None = None, arrived: Callable[[], None] = lambda: None
    ) -> tuple[Iterable[memoryview], int]:
        """The requested chunk, of `size` bytes as signed, in pieces, and its bytes on the wire.

        A piece is valid until the next is asked for, and read from the network only then; all must be taken.
        `shape` is what PLANES is decoded by. `arrived` is called once all of an encoded chunk is here, before it is
        decoded.

        Raises:
            UnavailableError: `peer.closed`, `peer.stalled`, `peer.deadline`, `peer.busy`, `peer.failed`.
            NotFoundError: `peer.chunk_gone`.
            MalformedError: `bulk.frame`, `bulk.length`, `bulk.encoding`, `codec.frame`, `codec.window`.
            IntegrityError: `bulk.size`, `codec.size`, `bulk.seal`.
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
        self._opened().read_message(body)
        arrived()
        self._codec.decode(body, reply.encoding, view, shape)
        return (view,), reply.length

    def send(
        self,
        artifact: ArtifactId,
        index: int,
        chunk: ChunkFile,
        encoding: Encoding,
        shape: ChunkShape | None = None,
    ) -> int:
        """Send a chunk; `confirm` takes the answer. Returns its bytes on the wire.

        `shape` is what PLANES is encoded by. Raises StoreError as `ChunkFile`; then the connection must be closed.
        """

        def request(encoding: Encoding, length: int) -> bytes:
            asked = BulkRequest(Verb.PUT, artifact, index, encoding, length)
            self._asked.append(asked)
            return asked.encode()

        return send_chunk(self._opened(), request, chunk, encoding, shape, self._codec, self._chunk)

    def confirm(self) -> None:
        """Wait until the chunk just sent is stored there.

        Raises:
            UnavailableError: as `receive`; PolicyError `peer.chunk_refused`; StoreError `store.full`;
            IntegrityError `integrity.chunk`, `bulk.seal`.
        """
        reply, request = self._reply()
        if reply.length:
            raise MalformedError("bulk.length", "an answer to a PUT has no body")
        if reply.status is not Status.OK:
            raise bulk_error(self._peer.name, reply.status, request.index)

    def stay_encrypted(self) -> None:
        """Never leave TLS again. What is open stays as it is."""
        self._clear = None

    def abort(self) -> None:
        """Break the connection for good, waking the thread that uses it."""
        self._aborted = True
        opening, stream = self._opening, self._stream
        if stream is not None:
            stream.abort()
        elif opening is not None:
            with contextlib.suppress(OSError):
                opening.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Requests without an answer are forgotten; `open` may be called again."""
        self._asked.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _reply(self) -> tuple[BulkReply, BulkRequest]:
        stream = self._opened()
        if not self._asked:
            raise UsageError("peer.nothing_asked", "nothing was asked for on this connection")
        frame = stream.read_frame(REPLY_BYTES)
        if frame is None:
            raise closed()
        return BulkReply.decode(frame), self._asked.popleft()

    def _opened(self) -> Stream:
        if self._stream is None:
            raise UnavailableError("peer.closed", "the connection is not open")
        return self._stream
