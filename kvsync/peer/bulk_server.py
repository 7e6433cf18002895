"""The bulk lane's serving side: a thread per connection that answers chunk requests in order (SPEC 8.2).

Sends only what an artifact here holds, kept whole, in part or still arriving, to peers with the role `get`;
takes only what an open offer of the same peer wants, from peers with the role `push`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections import OrderedDict
from contextlib import ExitStack
from typing import Final

from kvsync.config import Settings
from kvsync.errors import KvsyncError, NotFoundError, StoreError, UnavailableError, UsageError
from kvsync.pack.codec import Codec
from kvsync.pack.shape import ChunkShape, leaf_shape
from kvsync.peer.access import Access
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.chunk_sending import send_chunk
from kvsync.peer.clear_stream import ClearStream, leave_tls
from kvsync.peer.connections import Connection, ConnectionTable
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import peer_key
from kvsync.peer.listener import HANDSHAKE_S
from kvsync.peer.offers import Offers
from kvsync.peer.place import host_of
from kvsync.peer.rates import Rates
from kvsync.peer.roster import Roster
from kvsync.peer.secure_stream import SecureStream
from kvsync.peer.stream import Stream, buffer
from kvsync.peer.tls_connection import TlsConnection
from kvsync.store import Served, Store
from kvsync_protocol import bulk, unencrypted
from kvsync_protocol.bulk import (
    MAX_WIRE_BYTES,
    REQUEST_BYTES,
    BulkReply,
    BulkRequest,
    Encoding,
    Status,
    Verb,
)
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import CodedError, IntegrityError, MalformedError, ProtocolError
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.limits import MAX_CHUNK_BYTES
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.unencrypted import Side

HELD: Final = 2
"""Artifacts in use per connection, kept from gc; a connection serves one as a rule."""

log = logging.getLogger(__name__)


class BulkSession:
    """One connection of one peer. `run` returns when it ends, for whatever reason.

    A request in hand is finished; once the descriptor `wake` is readable no other is begun.
    """

    def __init__(
        self,
        store: Store,
        offers: Offers,
        roster: Roster,
        access: Access,
        key: PublicKey,
        stream: Stream,
        wake: int,
    ) -> None:
        self.store = store
        self._offers = offers
        self._roster = roster
        self._access = access
        self._key = key
        self.stream = stream
        self.entry = Connection(key, stream.abort, lambda: None)  # `wake` drains all sessions at once
        self._wake = wake
        self._held: OrderedDict[ArtifactId, tuple[Served, ExitStack]] = OrderedDict()
        self._codec = Codec()
        self._chunk = buffer(MAX_CHUNK_BYTES)
        self._body: memoryview | None = None  # for encoded PUTs only

    def run(self) -> None:
        try:
            while self.stream.wait(self._wake):
                frame = self.stream.read_frame(REQUEST_BYTES)
                if frame is None:
                    return
                self.entry.idle_since = None
                self._answer(BulkRequest.decode(frame))
                self.entry.idle_since = time.monotonic()
        except (KvsyncError, ProtocolError) as error:
            log.info("bulk connection of %s ended: %s", self._key.key_id, error)
        finally:
            while self._held:
                self._let_go()

    def _answer(self, request: BulkRequest) -> None:
        if request.verb is Verb.GET:
            self._give(request)
        else:
            self._take(request)

    @property
    def _paused(self) -> bool:
        return self.stream.throttle is not None and self.stream.throttle.paused

    def _allowed(self, role: str) -> bool:
        peer = self._roster.find(self._key)
        return peer is not None and role in peer.roles

    def _visible(self, artifact: ArtifactId) -> bool:
        peer = self._roster.find(self._key)
        return peer is not None and "get" in peer.roles and self._access.sees(peer, artifact)

    # GET

    def _give(self, request: BulkRequest) -> None:
        if self._paused:
            self._reply(Status.BUSY)
            return
        try:
            leaf = self._leaf(request) if self._visible(request.artifact) else None
            if leaf is None:
                self._reply(Status.NOT_FOUND)
                return
            chunk = ChunkFile(self.store, leaf)
        except NotFoundError:
            self._reply(Status.NOT_FOUND)
        except CodedError as error:
            log.error("chunk %d of %s cannot be served: %s", request.index, request.artifact.short, error)
            self._reply(Status.FAILED)
        else:
            with chunk:
                self.send_chunk(request, chunk)

    def _leaf(self, request: BulkRequest) -> Leaf | None:
        if request.artifact not in self._held:
            if len(self._held) == HELD:
                self._let_go()
            with ExitStack() as stack:
                served = stack.enter_context(self.store.serve(request.artifact))
                self._held[request.artifact] = served, stack.pop_all()
        return self._held[request.artifact][0].leaf(request.index)

    def _let_go(self) -> None:
        _, (_, stack) = self._held.popitem(last=False)
        stack.close()

    def send_chunk(self, request: BulkRequest, chunk: ChunkFile) -> None:
        """Answer a GET, encoded as asked where that makes it smaller.

        A file that turns out damaged after the first piece ends the connection: the getter must not take
        what is there for a chunk.
        """

        def reply(encoding: Encoding, length: int) -> bytes:
            return BulkReply(Status.OK, encoding, length).encode()

        shape = _shape(request, self._held[request.artifact][0].layout)
        send_chunk(self.stream, reply, chunk, request.encoding, shape, self._codec, self._chunk)

    # PUT

    def _take(self, request: BulkRequest) -> None:
        body = self._receive(request)
        if not self._allowed("push"):
            self._reply(Status.REFUSED)
            return
        if self._paused:
            self._reply(Status.BUSY)
            return
        try:
            offer = self._offers.find(self._key, request.artifact)
            with offer.use():
                table = offer.leaf_table
                if table is None or request.index >= len(table.leaves):
                    self._reply(Status.REFUSED)
                    return
                shape = _shape(request, offer.manifest.layout)
                offer.put(request.index, self._decoded(request, body, table.leaves[request.index].size, shape))
        except (IntegrityError, MalformedError):
            self._reply(Status.CORRECT_AND_RESEND)
        except (NotFoundError, UsageError):
            self._reply(Status.REFUSED)
        except StoreError as error:
            log.error("a pushed chunk cannot be stored: %s", error)
            self._reply(Status.FULL if error.code == "store.full" else Status.FAILED)
        except UnavailableError:
            self._reply(Status.BUSY)
        else:
            self._reply(Status.OK)

    def _receive(self, request: BulkRequest) -> memoryview:
        """The body, whole even when it is going to be refused, so that the next frame is a frame."""
        if request.encoding is Encoding.IDENTITY and request.length <= MAX_CHUNK_BYTES:
            body = self._chunk[: request.length]
        else:
            if self._body is None:
                self._body = buffer(MAX_WIRE_BYTES)
            body = self._body[: request.length]
        if request.encoding is Encoding.IDENTITY:
            self.stream.read_into(body)
        else:
            self.stream.read_message(body)
        return body

    def _decoded(self, request: BulkRequest, body: memoryview, size: int, shape: ChunkShape | None) -> memoryview:
        if request.encoding is Encoding.IDENTITY:
            return body  # put refuses any other length than the leaf's
        self._codec.decode(body, request.encoding, self._chunk[:size], shape)
        return self._chunk[:size]

    def _reply(self, status: Status) -> None:
        self.stream.write_frame(BulkReply(status).encode())


def _shape(request: BulkRequest, layout: Layout) -> ChunkShape | None:
    """What the chunk consists of, for the encoding that has to know; its index is in the leaf table."""
    return leaf_shape(layout, request.index) if request.encoding is Encoding.PLANES else None


class BulkLane:
    """Takes sockets whose ClientHello asks for the bulk protocol, each in its own thread.

    Called, it serves over TLS; `unencrypted` leaves TLS once both sides have proved who they are.
    """

    def __init__(
        self,
        store: Store,
        offers: Offers,
        roster: Roster,
        access: Access,
        table: ConnectionTable,
        settings: Settings,
    ) -> None:
        self._store = store
        self._offers = offers
        self._roster = roster
        self._access = access
        self._table = table
        self._settings = settings
        self._rates = Rates.of(roster.home)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def drain(self) -> None:
        """Every session ends after the request in hand."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """After the last session has ended."""
        os.close(self._wake)

    def __call__(self, connection: socket.socket) -> None:
        """Handshake, serve, close. The connection was admitted to the table; it is removed in the end."""
        self._serve(connection, bulk.ALPN)

    def unencrypted(self, connection: socket.socket) -> None:
        """The same for a socket from an address with which chunks may be exchanged without encryption."""
        self._serve(connection, unencrypted.ALPN)

    def _serve(self, connection: socket.socket, protocol: str) -> None:
        stream = None
        try:
            stream, key = self._handshake(connection, protocol)
        except (OSError, CodedError) as error:
            log.info("no bulk session: %s", error)
        finally:
            if stream is None:
                connection.close()
                self._table.release()
        if stream is None:
            return
        session = self.session(key, stream)
        self._table.add(session.entry)
        try:
            session.run()
        finally:
            stream.close()
            self._table.remove(session.entry)

    def session(self, key: PublicKey, stream: Stream) -> BulkSession:
        """What serves one connection."""
        return BulkSession(self._store, self._offers, self._roster, self._access, key, stream, self._wake)

    def _handshake(self, connection: socket.socket, protocol: str) -> tuple[Stream | None, PublicKey]:
        wait_s = min(HANDSHAKE_S, self._settings.stall_timeout_s)
        session = TlsConnection(self._roster.bulk_context(protocol), connection, serving=True)
        session.handshake(wait_s)
        key = peer_key(session)
        peer = self._roster.find(key)
        if peer is None or session.selected_alpn_protocol() != protocol:
            return None, key
        deadline = Deadline.after(self._settings.transfer_deadline_s)
        throttle = self._rates.throttle(key)
        stall_s = self._settings.stall_timeout_s
        if protocol == bulk.ALPN:
            return SecureStream(connection, session, stall_s=stall_s, deadline=deadline, throttle=throttle), key
        address = host_of(connection.getpeername())
        secret = leave_tls(session, Side.SERVING, wait_s)
        log.warning("chunks go UNENCRYPTED to and from %s at %s", peer.name, address)
        stream = ClearStream(connection, secret, Side.SERVING, stall_s=stall_s, deadline=deadline, throttle=throttle)
        return stream, key
