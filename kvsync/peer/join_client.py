"""The join lane's asking side: show a ticket to the node that gave it out, and learn who that is.

The ticket names the key that must answer; whatever else has the address by now gets nothing but a failed
handshake. Changes nothing on this host: pinning what was learnt is the caller's.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Final

from kvsync.errors import KvsyncError, PolicyError, UnavailableError
from kvsync.keys import NodeKeys, split_address
from kvsync.peer.dial import STAGGER_S, NobodyAnsweredError, cut, first_to_answer
from kvsync.peer.identity import NodeIdentity, check_peer
from kvsync.peer.stream_errors import stream_error
from kvsync_protocol.errors import CodedError, MalformedError, ProtocolError, TrustError
from kvsync_protocol.join import ALPN, MAX_JOIN_BYTES, Introduction, JoinAnswer, JoinRequest
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.ticket import Ticket

CONNECT_S: Final = 10.0
ANSWER_S: Final = 15.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def show_ticket(ticket: Ticket, keys: NodeKeys, about: Introduction) -> JoinAnswer:
    """Spend `ticket`.

    Raises:
        TrustError: `peer.identity` when something else answers at every address that answers, `ticket.expired`,
            `ticket.spent`, `ticket.unknown`.
        PolicyError: another refusal, under the other side's code.
        UnavailableError: `peer.unreachable`, `join.closed` when that node takes no tickets now, `peer.stalled`.
        MalformedError: `message.*`.
    """
    identity = NodeIdentity(keys.peer)
    context = identity.join_client_context(ticket.identity)

    async def reach(address: str) -> Streams:
        host, port = split_address(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=context, happy_eyeballs_delay=STAGGER_S
                )
        except (OSError, TimeoutError) as error:
            raise _named(error) from error
        try:
            check_peer(writer.get_extra_info("ssl_object"), ticket.identity, ALPN)
        except BaseException:
            await cut([writer.transport])
            raise
        return reader, writer

    try:
        _, (reader, writer) = await first_to_answer(
            ticket.addresses,
            reach,
            failing=(UnavailableError, TrustError),
            discard=lambda streams: streams[1].transport.abort(),
        )
    except NobodyAnsweredError as error:
        await cut([])
        raise _unreachable(error) from error
    request = JoinRequest(ticket.identity, identity.public, about).seal(ticket.key).encode()
    try:
        async with asyncio.timeout(ANSWER_S):
            writer.write(len(request).to_bytes(4, "big") + request)
            await writer.drain()
            size = int.from_bytes(await reader.readexactly(4), "big")
            if size > MAX_JOIN_BYTES:
                raise MalformedError("message.size", f"an answer of more than {MAX_JOIN_BYTES} bytes")
            answer = JoinAnswer.parse(await reader.readexactly(size))
    except asyncio.IncompleteReadError as error:
        raise UnavailableError("peer.closed", "the other side ended the connection without an answer") from error
    except (OSError, TimeoutError) as error:
        raise _named(error) from error
    finally:
        await cut([writer.transport])
    if isinstance(answer, ErrorReply):
        kind = TrustError if answer.code.startswith("ticket.") else PolicyError
        raise kind(answer.code, answer.message, hint=answer.hint)
    return answer


def _unreachable(error: NobodyAnsweredError) -> CodedError:
    failures = error.failures
    for wanted in ("peer.identity", "join.closed"):
        for failure in failures.values():
            if failure.code == wanted:
                return failure
    tried = ", ".join(f"{address} ({failure.message})" for address, failure in failures.items())
    return UnavailableError(
        "peer.unreachable", f"nobody can be reached at {tried}", hint="is the other daemon running?"
    )


def _named(error: OSError) -> KvsyncError | ProtocolError:
    if isinstance(error, TimeoutError):
        return UnavailableError("peer.stalled", "no answer in time")
    if isinstance(error, ssl.SSLCertVerificationError):
        return stream_error(error)
    if isinstance(error, ssl.SSLError | ConnectionResetError):
        return UnavailableError(
            "join.closed", "no ticket is expected there: it expired or was withdrawn", hint="ask for a new one"
        )
    return UnavailableError("peer.unreachable", (error.strerror or "the connection ended").lower())
