"""The join lane's serving side: the only exchange that a host without a pin can have, and only with a ticket.

TLS asks for a certificate of any key and proves that its holder is there; the request must name both keys of
this session and be signed under an invitation's secret. Few at once, small, short, and slow after a failure.
While no ticket is out there is no lane: the connection ends before TLS.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from kvsync.config import Settings
from kvsync.errors import KvsyncError, UnavailableError
from kvsync.keys import NodeKeys, TrustList
from kvsync.keys.invitations import Invitations
from kvsync.peer.connections import ConnectionTable
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import peer_key
from kvsync.peer.roster import Roster
from kvsync.peer.secure_stream import SecureStream
from kvsync.peer.tls_connection import TlsConnection
from kvsync.peer.tls_context import join_context
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, MalformedError, ProtocolError
from kvsync_protocol.join import ALPN, MAX_JOIN_BYTES, Introduction, JoinAnswer, refusal
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.signing import PublicKey

MAX_AT_ONCE: Final = 4
JOIN_S: Final = 10.0
"""From the first byte of the handshake to the last of the answer."""
FAILURE_PAUSE_S: Final = 0.5

log = logging.getLogger(__name__)


class JoinLane:
    """Takes sockets whose ClientHello asks to join, each in its own thread.

    `introduce` gives what to tell the joiner of this node.
    """

    def __init__(
        self,
        keys: NodeKeys,
        roster: Roster,
        trust: TrustList,
        table: ConnectionTable,
        settings: Settings,
        introduce: Callable[[], Introduction],
    ) -> None:
        self._invitations = Invitations(keys.home)
        self._roster = roster
        self._trust = trust
        self._table = table
        self._limit_s = min(JOIN_S, settings.stall_timeout_s)
        self._introduce = introduce
        self._slots = threading.BoundedSemaphore(MAX_AT_ONCE)

    def __call__(self, connection: socket.socket) -> None:
        """Serve one request and close. The connection was admitted to the table as a stranger's, and stays one."""
        try:
            if self._slots.acquire(blocking=False):
                try:
                    self._serve(connection)
                finally:
                    self._slots.release()
        except (OSError, KvsyncError, ProtocolError) as error:
            log.info("nobody joined: %s", error)
        finally:
            connection.close()
            self._table.release()

    def _serve(self, connection: socket.socket) -> None:
        if not self._invitations.list():
            return
        identity = self._roster.identity()
        session = TlsConnection(join_context(identity), connection, serving=True)
        session.handshake(self._limit_s)
        joiner = peer_key(session)
        if session.selected_alpn_protocol() != ALPN:
            return
        stream = SecureStream(connection, session, stall_s=self._limit_s, deadline=Deadline.after(self._limit_s))
        try:
            request = _read(stream)
            answer = self._accept(request, joiner, identity.public)
        except UnavailableError:
            raise
        except CodedError as error:
            log.warning("a request to join was refused: %s (%s)", error, error.code)
            time.sleep(FAILURE_PAUSE_S)
            answer = refusal(ErrorReply.of(error))
        stream.write(len(answer).to_bytes(4, "big"), answer)

    def _accept(self, request: bytes, joiner: PublicKey, own: PublicKey) -> bytes:
        _, peer = self._invitations.spend(Envelope.parse(request), joiner, own, self._trust)
        log.info("%s joined with key %s", peer.name, peer.key.key_id)
        return JoinAnswer(self._introduce(), peer.roles).encode()


def _read(stream: SecureStream) -> bytes:
    header = bytearray(4)
    stream.read_into(memoryview(header))
    size = int.from_bytes(header, "big")
    if size > MAX_JOIN_BYTES:
        raise MalformedError("message.size", f"a request of more than {MAX_JOIN_BYTES} bytes")
    body = bytearray(size)
    stream.read_into(memoryview(body))
    return bytes(body)
