"""The one port: who gets in, what strangers and slow ones get, and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from kvsync.config import Settings
from kvsync.errors import UnavailableError
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.server import PeerServer
from kvsync.peer.tls_context import asking_context
from kvsync_protocol import bulk
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status, Verb
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.errors import CodedError, TrustError
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, build_artifact
from tests.peer.test_client_hello import hello as client_hello
from tests.sync.nodes import Node

ARTIFACT = build_artifact()
UNKNOWN = ArtifactId(sha256(b"unknown"))


def at(node: Node) -> tuple[str, int]:
    host, port = node.address.split(":")
    return host, int(port)


def plain_connection(node: Node) -> socket.socket:
    return socket.create_connection(at(node), timeout=10)


def ended(connection: socket.socket) -> bool:
    """True once the other side closed, which it must do within the socket's timeout."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass
    return True


def context_of(node: Node, server: Node, protocol: str) -> ssl.SSLContext:
    return NodeIdentity(node.keys.peer).client_context(server.keys.peer.public, protocol)


@asynccontextmanager
async def secured(node: Node, server: Node, protocol: str) -> AsyncIterator[ssl.SSLSocket]:
    """A connection after its handshake, made in a thread because the server needs the loop."""
    with await asyncio.to_thread(handshake, node, server, protocol) as connection:
        yield connection


def handshake(node: Node, server: Node, protocol: str) -> ssl.SSLSocket:
    return context_of(node, server, protocol).wrap_socket(plain_connection(server))


def ask(connection: ssl.SSLSocket, request: bytes) -> tuple[int, dict[str, object]]:
    """One HTTP request by hand; status and JSON body."""
    connection.sendall(request)
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        assert piece, "closed before an answer"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[16:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length: "))
    while len(body) < length:
        body += connection.recv(65536)
    return int(head.split()[1]), json.loads(body) if body else {}


async def works(getter: Node, provider: Node) -> bool:
    """An honest pull goes through."""
    await getter.pull(provider, ARTIFACT.id)
    return getter.store.artifact(ARTIFACT.id).artifact == ARTIFACT.id


STRANGE = {
    "plain HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "noise": bytes(range(1, 256)),
    "a hello without ALPN": client_hello(),
    "a hello for another protocol": client_hello("h2", "kvsync-bulk/2"),
    "an endless record": b"\x16\x03\x01\x40\x00" + bytes(2**14),
    "nothing": b"",
    "half a hello": client_hello("http/1.1")[:50],
}


@pytest.mark.parametrize("data", STRANGE.values(), ids=STRANGE.keys())
async def test_strange_bytes_end_only_their_own_connection(provider: Node, getter: Node, data: bytes) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=2)
    provider.keep(ARTIFACT)
    async with provider.serving():
        with await asyncio.to_thread(plain_connection, provider) as connection:
            connection.sendall(data)
            assert await asyncio.to_thread(ended, connection)
        assert await works(getter, provider)


@pytest.mark.parametrize("protocol", ["http/1.1", bulk.ALPN])
async def test_tls_1_2_is_refused(provider: Node, getter: Node, protocol: str) -> None:
    def old() -> None:
        context = context_of(getter, provider, protocol)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
        with plain_connection(provider) as connection, context.wrap_socket(connection):
            pass

    async with provider.serving():
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.to_thread(old)


@pytest.mark.parametrize("protocol", ["http/1.1", bulk.ALPN])
@pytest.mark.parametrize("who", ["unpinned key", "no certificate"])
async def test_nobody_unknown_gets_a_session(
    provider: Node, make_node: Callable[..., Node], protocol: str, who: str
) -> None:
    stranger = make_node("stranger")

    def knock() -> None:
        context = context_of(stranger, provider, protocol)
        if who == "no certificate":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            context.set_alpn_protocols([protocol])
        with context.wrap_socket(plain_connection(provider)) as connection:
            connection.sendall(b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n")
            if not connection.recv(1):
                raise ConnectionResetError("closed")

    async with provider.serving():
        with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            await asyncio.to_thread(knock)


async def test_each_side_learns_why_it_is_refused(provider: Node, make_node: Callable[..., Node]) -> None:
    stranger = make_node("stranger")
    async with provider.serving():
        with pytest.raises(TrustError) as unknown_here:
            await stranger.pull(provider, UNKNOWN.hex)
        wrong = dataclasses.replace(provider.as_peer(), key=SigningKey(b"x" * 32).public)
        with pytest.raises(TrustError) as unknown_there:
            await stranger.pull(provider, UNKNOWN.hex, peer=wrong)
    assert (unknown_here.value.code, unknown_there.value.code) == ("peer.refused", "peer.identity")


async def test_a_peer_is_let_in_and_thrown_out_without_a_restart(
    provider: Node, make_node: Callable[..., Node]
) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=60)  # idleness is not the reason
    late = make_node("late")
    deadline = Deadline.after(20)
    async with provider.serving():
        identity = NodeIdentity(late.keys.peer)
        async with PeerClient(provider.as_peer(), identity, late.settings, deadline) as client:
            with pytest.raises(TrustError):
                await client.hello()
            provider.meet(late, "get")
            assert (await client.hello()).roles == ("get",)
            async with secured(late, provider, bulk.ALPN) as idle:
                provider.book.remove("late")
                assert await asyncio.to_thread(ended, idle)
            with pytest.raises(CodedError) as caught:
                await client.hello()
    assert caught.value.code == "peer.refused"


async def test_a_role_is_taken_away_without_a_restart(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    async with provider.serving(), secured(getter, provider, bulk.ALPN) as connection:
        request = BulkRequest(Verb.GET, ARTIFACT.id, 0).encode()
        connection.sendall(request)
        assert BulkReply.decode(_exactly(connection, bulk.REPLY_BYTES)).status is Status.OK
        _exactly(connection, len(ARTIFACT.chunks[0]))
        provider.book.add(dataclasses.replace(provider.book.get("getter"), roles=("push",)))
        connection.sendall(request)
        frame = await asyncio.to_thread(_exactly, connection, bulk.REPLY_BYTES)
        assert BulkReply.decode(frame).status is Status.NOT_FOUND


def _exactly(connection: ssl.SSLSocket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = connection.recv(size - len(found))
        assert piece, "closed before the answer was whole"
        found += piece
    return found


async def test_unknown_and_forbidden_chunks_get_the_same_answer(
    provider: Node, make_node: Callable[..., Node]
) -> None:
    provider.keep(ARTIFACT)
    outsider = make_node("outsider")
    provider.meet(outsider)

    def answers() -> set[bytes]:
        found = set()
        with handshake(outsider, provider, bulk.ALPN) as connection:
            for artifact, index in ((ARTIFACT.id, 0), (UNKNOWN, 0), (ARTIFACT.id, 2**32 - 1)):
                connection.sendall(BulkRequest(Verb.GET, artifact, index).encode())
                found.add(_exactly(connection, bulk.REPLY_BYTES))
        return found

    async with provider.serving():
        assert await asyncio.to_thread(answers) == {BulkReply(Status.NOT_FOUND).encode()}


async def test_an_index_beyond_the_last_chunk_is_not_found(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    async with provider.serving(), secured(getter, provider, bulk.ALPN) as connection:
        connection.sendall(BulkRequest(Verb.GET, ARTIFACT.id, len(ARTIFACT.chunks)).encode())
        frame = await asyncio.to_thread(_exactly, connection, bulk.REPLY_BYTES)
        assert BulkReply.decode(frame).status is Status.NOT_FOUND


async def test_a_put_without_an_offer_is_refused_and_the_connection_goes_on(provider: Node, getter: Node) -> None:
    async with provider.serving(), secured(getter, provider, bulk.ALPN) as connection:
        for _ in range(2):
            connection.sendall(BulkRequest(Verb.PUT, UNKNOWN, 0, length=1000).encode() + bytes(1000))
            frame = await asyncio.to_thread(_exactly, connection, bulk.REPLY_BYTES)
            assert BulkReply.decode(frame).status is Status.REFUSED


async def test_a_broken_frame_ends_the_connection(provider: Node, getter: Node) -> None:
    async with provider.serving(), secured(getter, provider, bulk.ALPN) as connection:
        connection.sendall(b"\0" * bulk.REQUEST_BYTES)
        assert await asyncio.to_thread(ended, connection)


REQUESTS = {
    "no such route": (b"GET /v2/hello HTTP/1.1\r\nHost: x\r\n\r\n", 404, "peer.route"),
    "a path with dots": (b"GET /v1/artifacts/../hello HTTP/1.1\r\nHost: x\r\n\r\n", 404, "peer.route"),
    "another method": (b"DELETE /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n", 405, "peer.route"),
    "no digest": (b"GET /v1/artifacts/xyz/envelope HTTP/1.1\r\nHost: x\r\n\r\n", 400, "digest.syntax"),
    "an upper-case digest": (
        b"GET /v1/artifacts/" + b"A" * 64 + b"/leaves HTTP/1.1\r\nHost: x\r\n\r\n",
        400,
        "digest.syntax",
    ),
    "an unknown artifact": (
        f"GET /v1/artifacts/{UNKNOWN.hex}/tokens HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        404,
        "store.unknown_artifact",
    ),
    "an unknown offer": (
        f"GET /v1/offers/{UNKNOWN.hex}/missing HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        404,
        "offer.unknown",
    ),
    "no name": (b"GET /v1/refs?name=%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "ref.name"),
    "an offer that is no JSON": (
        b"POST /v1/offers HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        400,
        "json.syntax",
    ),
    "a length over the limit": (
        b"POST /v1/offers HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n",
        400,
        "message.size",
    ),
    "a compressed body": (
        b"POST /v1/offers HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\n\x1f\x8b\x08",
        400,
        "json.encoding",
    ),
    "any Host": (b"GET /v1/hello HTTP/1.1\r\nHost: evil.example\r\n\r\n", 200, None),
}


@pytest.mark.parametrize(("request_", "status", "code"), REQUESTS.values(), ids=REQUESTS.keys())
async def test_every_refusal_has_one_json_form(
    provider: Node, getter: Node, request_: bytes, status: int, code: str | None
) -> None:
    async with provider.serving(), secured(getter, provider, "http/1.1") as connection:
        found, body = await asyncio.to_thread(ask, connection, request_)
    assert found == status
    assert body.get("code") == code
    assert code is None or set(body) == {"code", "message", "hint"}


async def test_a_chunked_body_is_cut_off_at_its_limit(provider: Node, getter: Node) -> None:
    def pour() -> tuple[int, dict[str, object]]:
        with handshake(getter, provider, "http/1.1") as connection:
            connection.sendall(b"POST /v1/offers HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            piece = b"10000\r\n" + bytes(65536) + b"\r\n"
            for _ in range(33):
                connection.sendall(piece)
            return ask(connection, b"")

    async with provider.serving():
        status, body = await asyncio.to_thread(pour)
    assert (status, body["code"]) == (400, "message.size")


SLOW = {
    "no hello": (None, b""),
    "half a header": ("http/1.1", b"GET /v1/hello HTTP/1.1\r\nHo"),
    "half a body": ("http/1.1", b"POST /v1/offers HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nab"),
    "half a frame": (bulk.ALPN, b"KVq1"),
    "half a chunk": (bulk.ALPN, BulkRequest(Verb.PUT, UNKNOWN, 0, length=100).encode() + b"ab"),
    "no request": (bulk.ALPN, b""),
}


@pytest.mark.parametrize(("protocol", "data"), SLOW.values(), ids=SLOW.keys())
async def test_who_sends_nothing_more_is_cut_off(
    make_node: Callable[..., Node], protocol: str | None, data: bytes
) -> None:
    provider, getter = make_node("provider", Settings(stall_timeout_s=1)), make_node("getter")
    provider.meet(getter, "get", "push")
    async with provider.serving():
        if protocol is None:
            with plain_connection(provider) as connection:
                assert await asyncio.to_thread(ended, connection)
        else:
            async with secured(getter, provider, protocol) as connection:
                connection.sendall(data)
                assert await asyncio.to_thread(ended, connection)


async def test_a_reader_that_takes_nothing_is_cut_off(make_node: Callable[..., Node]) -> None:
    provider, getter = make_node("provider", Settings(stall_timeout_s=1)), make_node("getter")
    provider.meet(getter, "get")
    big = build_artifact(tokens=64, block_tokens=64, heads=16, dim=128)
    provider.keep(big)
    async with provider.serving() as server, secured(getter, provider, bulk.ALPN) as connection:
        for _ in range(100):
            connection.sendall(BulkRequest(Verb.GET, big.id, 0).encode())
        for _ in range(100):
            if server.connections == 0:
                break
            await asyncio.sleep(0.1)
        assert server.connections == 0


async def test_strangers_cannot_take_every_connection(make_node: Callable[..., Node]) -> None:
    provider = make_node("provider", Settings(stall_timeout_s=5, max_connections=8))
    getter = make_node("getter")
    provider.meet(getter, "get")
    provider.keep(ARTIFACT)
    async with provider.serving():
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(plain_connection(provider)) for _ in range(20)]
            assert await asyncio.to_thread(ended, idle[-1])  # the surplus is turned away at once
            assert sum(_open(connection) for connection in idle) == 4
            for connection in idle:
                connection.close()
        getter.trust.add("signer", ARTIFACT.key.public)
        assert await works(getter, provider)


async def test_one_peer_cannot_take_every_connection(make_node: Callable[..., Node]) -> None:
    provider = make_node("provider", Settings(stall_timeout_s=5, max_connections=8))
    greedy, other = make_node("greedy"), make_node("other")
    for node in (greedy, other):
        provider.meet(node, "get")
        node.trust.add("signer", SIGNER.public)
    provider.keep(ARTIFACT)
    async with provider.serving():
        with contextlib.ExitStack() as stack:
            held = []
            for _ in range(8):
                connection = await asyncio.to_thread(handshake, greedy, provider, bulk.ALPN)
                held.append(stack.enter_context(connection))
            assert [await asyncio.to_thread(ended, connection) for connection in held[6:]] == [True, True]
            report = await other.pull(provider, ARTIFACT.id, settings={"streams": 1})
            assert report.chunks_moved == len(ARTIFACT.chunks)
            assert all(_open(connection) for connection in held[:6])


def _open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1))
    except (BlockingIOError, ssl.SSLWantReadError):
        return True
    except ConnectionResetError:
        return False


async def test_a_port_that_is_taken_is_named(provider: Node, make_node: Callable[..., Node]) -> None:
    async with provider.serving():
        port = int(provider.address.split(":")[1])
        other = make_node("other", Settings(listen_port=port))
        server = PeerServer(other.store, other.keys, other.home, other.trust, other.settings)
        with pytest.raises(UnavailableError) as caught:
            await server.start()
        await server.stop()
    assert caught.value.code == "peer.listen"
    assert str(port) in caught.value.message


async def test_a_stop_lets_the_chunk_in_hand_go_out_whole(provider: Node, getter: Node) -> None:
    big = build_artifact(tokens=128, block_tokens=128, heads=16, dim=128)
    provider.keep(big)
    chunk = max(big.chunks, key=len)
    index = big.chunks.index(chunk)

    def slowly(connection: ssl.SSLSocket) -> bytes:
        found = b""
        while len(found) < bulk.REPLY_BYTES + len(chunk):
            piece = connection.recv(65536)
            if not piece:
                break
            found += piece
            time.sleep(0.005)
        return found

    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(provider.serving())
        connection = await stack.enter_async_context(secured(getter, provider, bulk.ALPN))
        connection.sendall(BulkRequest(Verb.GET, big.id, index).encode() * 3)
        reading = asyncio.create_task(asyncio.to_thread(slowly, connection))
        await asyncio.sleep(0.1)
        stopping = asyncio.create_task(server.stop())
        assert await reading == BulkReply(Status.OK, Encoding.IDENTITY, len(chunk)).encode() + chunk
        assert await asyncio.to_thread(ended, connection)
        await stopping
        stack.pop_all()


async def test_nothing_is_left_open_after_a_stop(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    async with provider.serving() as server:
        async with (
            secured(getter, provider, bulk.ALPN) as streaming,
            secured(getter, provider, "http/1.1") as control,
        ):
            status, _ = await asyncio.to_thread(ask, control, b"GET /v1/hello HTTP/1.1\r\nHost: x\r\n\r\n")
            assert status == 200
            await server.stop()
            assert await asyncio.to_thread(ended, streaming)
            assert await asyncio.to_thread(ended, control)
            assert server.connections == 0
        with pytest.raises(ConnectionRefusedError):
            plain_connection(provider)


def test_an_unresolvable_address_is_an_error_of_ours(getter: Node, provider: Node) -> None:
    peer = dataclasses.replace(getter.as_peer("no-such-host.invalid:1"), key=provider.keys.peer.public)
    context = asking_context(NodeIdentity(getter.keys.peer), peer.keys, bulk.ALPN)
    connection = BulkConnection(peer, peer.addresses[0], context, stall_s=1, deadline=Deadline.after(5))
    with pytest.raises(UnavailableError):
        connection.open()
