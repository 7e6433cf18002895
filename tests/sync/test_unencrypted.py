"""Chunks without encryption: only where both owners say so, and of no use to whoever changes them on the way."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from kvsync.errors import NotFoundError, UnavailableError
from kvsync.keys import Peer
from kvsync.keys.statements import Statements
from kvsync.pack.codec import Codec
from kvsync.peer import clear_stream
from kvsync.peer.blame import BlameBook
from kvsync.peer.bucket import LEAST_BURST
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.server import PeerServer
from kvsync.sync.repair import repair
from kvsync_protocol import unencrypted
from kvsync_protocol.bulk import REPLY_BYTES, REQUEST_BYTES, BulkReply, BulkRequest, Encoding, Status, Verb
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError, IntegrityError
from kvsync_protocol.unencrypted import KEY_BYTES, SEAL_BYTES, Seals, Side
from tests.conftest import build_artifact
from tests.sync.faulty import Faults, FaultyServer, FaultySession
from tests.sync.lies import wrong_bytes
from tests.sync.nodes import Node
from tests.sync.wire import Edit, Passage, Wire

ARTIFACT = build_artifact(tokens=120)
BYTES = sum(map(len, ARTIFACT.chunks))
LOOPBACK = ("127.0.0.0/8",)
REQUEST, REPLY = b"KVq1", b"KVr1"


def allow(*nodes: Node, networks: tuple[str, ...] = LOOPBACK) -> None:
    for node in nodes:
        node.settings = dataclasses.replace(node.settings, unencrypted_bulk_networks=networks)


@pytest.fixture
def both(provider: Node, getter: Node) -> None:
    """The owners of provider and getter allow chunks without encryption on loopback; the getter takes pushes."""
    allow(provider, getter)
    getter.meet(provider, "get", "push")


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The key of every connection that leaves TLS."""
    found: list[bytes] = []

    def noted(key: bytes, sender: Side) -> Seals:
        found.append(key)
        return Seals(key, sender)

    monkeypatch.setattr(clear_stream, "Seals", noted)
    return found


def readable(wire: Wire) -> list[int]:
    """Chunks whose bytes went by in the clear; ends of bodies that are long enough not to be there by chance."""
    return [index for index, chunk in enumerate(ARTIFACT.chunks) if bytes(chunk[-256:]) in wire.seen]


# where it is allowed


@pytest.mark.parametrize("encoding", ["identity", "zstd", "planes", "auto"])
async def test_a_pull_goes_without_encryption_where_both_sides_allow_it(
    provider: Node, getter: Node, both: None, encoding: str, keys: list[bytes], caplog: pytest.LogCaptureFixture
) -> None:
    provider.keep(ARTIFACT)
    with caplog.at_level(logging.DEBUG):
        async with provider.serving(), Wire().before(provider) as wire:
            report = await getter.pull(provider, ARTIFACT.id, settings={"encoding": encoding})
    assert report.bytes_moved == BYTES
    assert report.bytes_unencrypted == report.bytes_wire > 0
    assert getter.store.fsck().clean
    assert REPLY in wire.seen
    if encoding == "identity":
        assert readable(wire) == list(range(len(ARTIFACT.chunks)))
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert any("UNENCRYPTED" in text and "provider" in text for text in said)
    assert any("UNENCRYPTED" in text and "getter" in text for text in said)
    assert keys
    for key in keys:
        assert len(key) == KEY_BYTES
        assert key not in wire.seen
        assert key.hex() not in caplog.text
        assert repr(key) not in caplog.text


async def test_a_push_goes_without_encryption_where_both_sides_allow_it(
    provider: Node, getter: Node, both: None
) -> None:
    provider.keep(ARTIFACT)
    async with getter.serving(), Wire().before(getter) as wire:
        report = await provider.push(getter, ARTIFACT.id)
    assert report.bytes_unencrypted == report.bytes_wire == BYTES
    assert readable(wire) == list(range(len(ARTIFACT.chunks)))
    assert getter.store.fsck().clean


WHO = {
    "neither": ((), ()),
    "the getter alone": (LOOPBACK, ()),
    "the provider alone": ((), LOOPBACK),
    "both, for another network": (("10.0.0.0/8",), ("10.0.0.0/8",)),
    "each for another network": (LOOPBACK, ("10.0.0.0/8",)),
    "the other way round": (("10.0.0.0/8",), LOOPBACK),
}


@pytest.mark.parametrize(("getters", "providers"), WHO.values(), ids=WHO.keys())
@pytest.mark.parametrize("way", ["pull", "push"])
async def test_unless_both_allow_the_address_chunks_go_through_tls(
    provider: Node, getter: Node, getters: tuple[str, ...], providers: tuple[str, ...], way: str
) -> None:
    allow(getter, networks=getters)
    allow(provider, networks=providers)
    getter.meet(provider, "push")
    provider.keep(ARTIFACT)
    server = provider if way == "pull" else getter
    async with server.serving(), Wire().before(server) as wire:
        if way == "pull":
            report = await getter.pull(provider, ARTIFACT.id)
        else:
            report = await provider.push(getter, ARTIFACT.id)
    assert report.bytes_moved == BYTES
    assert report.bytes_unencrypted == 0
    assert readable(wire) == []
    assert REQUEST not in wire.seen
    assert REPLY not in wire.seen


@pytest.mark.parametrize(
    ("listening", "address", "networks"),
    [
        ("::1", "[::1]", ("::1",)),
        ("::", "127.0.0.1", LOOPBACK),  # which the provider sees as ::ffff:127.0.0.1
        ("127.0.0.1", "localhost", LOOPBACK),
    ],
)
async def test_addresses_of_either_kind_are_recognised(
    provider: Node, getter: Node, listening: str, address: str, networks: tuple[str, ...]
) -> None:
    allow(provider, getter, networks=networks)
    provider.settings = dataclasses.replace(provider.settings, listen_host=listening)
    provider.keep(ARTIFACT)
    async with provider.serving():
        port = provider.address.rpartition(":")[2]
        report = await getter.pull(provider, ARTIFACT.id, peer=provider.as_peer(f"{address}:{port}"))
    assert report.bytes_unencrypted == report.bytes_wire > 0


async def test_repairs_stay_encrypted(provider: Node, getter: Node, both: None) -> None:
    provider.keep(ARTIFACT)
    getter.keep(ARTIFACT)
    digest = sha256(ARTIFACT.chunks[1]).hex
    (getter.home.store_dir / "chunks" / digest[:2] / digest).unlink()
    async with provider.serving(), Wire().before(provider) as wire:
        await repair(getter.store, provider.as_peer(), keys=getter.keys, settings=getter.settings)
    assert getter.store.fsck().clean
    assert readable(wire) == []


# who changes bytes on the way


class Once:
    """Changes one thing on the first connection that has it, and remembers having done so."""

    def __init__(self, way: str, magic: bytes, offset: int) -> None:
        self._way, self._magic, self._offset = way, magic, offset
        self._lock = threading.Lock()
        self.done = False

    def __call__(self, passage: Passage, way: str, data: bytes) -> bytes:
        with self._lock:
            before = bytes(getattr(passage, way))
            found = (before + data).find(self._magic)
            place = found + self._offset - len(before)
            if self.done or way != self._way or found < 0 or not 0 <= place < len(data):
                return data
            self.done = True
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


CHANGED_REPLIES = {
    "the status": ("identity", 4),
    "the length": ("identity", REPLY_BYTES - 5),
    "the seal": ("identity", REPLY_BYTES),
    "the body": ("identity", REPLY_BYTES + SEAL_BYTES + 40),
    "an encoded body": ("zstd", REPLY_BYTES + SEAL_BYTES + 40),
    "a body in planes": ("planes", REPLY_BYTES + SEAL_BYTES + 40),
}


@pytest.mark.parametrize(("encoding", "offset"), CHANGED_REPLIES.values(), ids=CHANGED_REPLIES.keys())
async def test_what_is_changed_on_the_way_to_the_getter_comes_again_over_tls(
    provider: Node, getter: Node, both: None, encoding: str, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte of it is kept, no decoder sees it, and the peer is not blamed for it."""
    provider.keep(ARTIFACT)
    edit = Once("down", REPLY, offset)
    decoded: list[bytes] = []
    honest = {bytes(body) for body in _encoded(encoding)}
    decode = Codec.decode

    def noted(codec: Codec, body: memoryview, *rest: object) -> None:
        decoded.append(bytes(body))
        decode(codec, body, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Codec, "decode", noted)
    async with provider.serving(), Wire(edit).before(provider):
        report = await getter.pull(provider, ARTIFACT.id, settings={"encoding": encoding})
    assert edit.done
    assert report.resent == 1
    assert 0 < report.bytes_unencrypted < report.bytes_wire or report.streams == 1
    assert report.sources[0].wrong == 0
    assert getter.store.fsck().clean
    assert BlameBook(getter.home).records(frozenset({getter.keys.signer.public})) == []
    assert set(decoded) <= honest


def _encoded(encoding: str) -> Iterator[memoryview]:
    from kvsync.pack.shape import leaf_shape

    codec, layout = Codec(), ARTIFACT.manifest.layout
    for index, chunk in enumerate(ARTIFACT.chunks):
        kind = Encoding[encoding.upper()]
        shape = leaf_shape(layout, index) if kind is Encoding.PLANES else None
        yield codec.encode(memoryview(chunk), kind, shape)[1]


CHANGED_REQUESTS = {"the verb": 4, "the leaf": REQUEST_BYTES - 5, "the seal": REQUEST_BYTES}


@pytest.mark.parametrize("offset", CHANGED_REQUESTS.values(), ids=CHANGED_REQUESTS.keys())
async def test_a_changed_request_is_not_answered(provider: Node, getter: Node, both: None, offset: int) -> None:
    provider.keep(ARTIFACT)
    edit, faults = Once("up", REQUEST, offset), Faults()
    async with provider.serving(partial(FaultyServer, faults=faults)), Wire(edit).before(provider):
        report = await getter.pull(provider, ARTIFACT.id)
    assert edit.done
    assert sorted(faults.chunks) == list(range(len(ARTIFACT.chunks)))  # each served once, the changed request never
    assert report.resent == 0
    assert getter.store.fsck().clean


async def test_a_pushed_chunk_that_is_changed_on_the_way_is_sent_again_over_tls(
    provider: Node, getter: Node, both: None
) -> None:
    provider.keep(ARTIFACT)
    edit = Once("up", REQUEST, REQUEST_BYTES + SEAL_BYTES + 40)
    async with getter.serving(), Wire(edit).before(getter):
        report = await provider.push(getter, ARTIFACT.id)
    assert edit.done
    assert report.resent == 1
    assert getter.store.fsck().clean
    assert getter.store.whole(ARTIFACT.id) is not None


SEALED_REQUEST = re.compile(re.escape(REQUEST) + b".{%d}" % (REQUEST_BYTES + SEAL_BYTES - len(REQUEST)), re.DOTALL)
"""Wherever it stands: it may come in one piece with the end of TLS, or with the next request."""


def repeated(passage: Passage, way: str, data: bytes) -> bytes:
    """Each request twice."""
    return SEALED_REQUEST.sub(lambda found: 2 * found[0], data) if way == "up" else data


class Elsewhere:
    """The very first request in place of each that follows, in every connection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.first = b""
        self.tried = 0

    def __call__(self, passage: Passage, way: str, data: bytes) -> bytes:
        with self._lock:
            return SEALED_REQUEST.sub(self._replace, data) if way == "up" else data

    def _replace(self, found: re.Match[bytes]) -> bytes:
        self.tried += bool(self.first)
        self.first = self.first or found[0]
        return self.first


@pytest.mark.parametrize("edit", [repeated, Elsewhere()], ids=["in its connection", "in another"])
async def test_a_repeated_request_is_not_answered(provider: Node, getter: Node, both: None, edit: Edit) -> None:
    provider.keep(ARTIFACT)
    faults = Faults()
    async with provider.serving(partial(FaultyServer, faults=faults)), Wire(edit).before(provider):
        if edit is repeated:  # each chunk comes, and then the connection ends
            await getter.pull(provider, ARTIFACT.id, settings={"streams": 1})
        else:
            with pytest.raises(UnavailableError) as caught:
                await getter.pull(provider, ARTIFACT.id, settings={"streams": 1})
            assert caught.value.code == "peer.closed"
            assert isinstance(edit, Elsewhere)
            assert edit.tried
    assert len(faults.chunks) == len(set(faults.chunks)) > 0


def later(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    """An answer that is not the next one."""
    session.stream._seal(b"left out")
    session.stream.write_frame(BulkReply(Status.NOT_FOUND).encode())


async def test_a_left_out_message_is_noticed(provider: Node, getter: Node, both: None) -> None:
    provider.keep(ARTIFACT)
    faults = Faults(chunk=later, leaves={1})
    async with provider.serving(partial(FaultyServer, faults=faults)):
        connection = await connected(getter, provider)
        with pytest.raises(IntegrityError) as caught:
            await asyncio.to_thread(_fetch, connection, 1)
        connection.close()
    assert caught.value.code == "bulk.seal"


def _fetch(connection: BulkConnection, index: int) -> bytes:
    if not connection.is_open:
        connection.open()
    connection.ask(ARTIFACT.id, index, Encoding.IDENTITY)
    pieces, _ = connection.receive(len(ARTIFACT.chunks[index]))
    return b"".join(bytes(piece) for piece in pieces)


async def test_a_lying_provider_is_found_out_over_tls(provider: Node, getter: Node, both: None) -> None:
    """In the clear anybody could have done it; over TLS only the peer can, and is blamed."""
    provider.keep(ARTIFACT)
    faults = Faults(chunk=wrong_bytes, leaves={1})
    async with provider.serving(partial(FaultyServer, faults=faults)):
        with pytest.raises(IntegrityError) as caught:
            await getter.pull(provider, ARTIFACT.id)
    assert caught.value.code == "integrity.chunk"
    assert len(BlameBook(getter.home).records(frozenset({getter.keys.signer.public}))) > 0


# everything else holds as it does in TLS


async def nobody(server: PeerServer) -> bool:
    """True once no connection is left, which must be soon."""
    for _ in range(200):
        if server.connections == 0:
            return True
        await asyncio.sleep(0.05)
    return False


async def connected(node: Node, server: Node) -> BulkConnection:
    """A connection that has left TLS."""
    deadline = Deadline.after(20)
    async with PeerClient(server.as_peer(), NodeIdentity(node.keys.peer), node.settings, deadline) as client:
        await client.hello()
        connection = client.bulk()
    await asyncio.to_thread(connection.open)
    assert not connection.is_encrypted
    return connection


async def test_a_role_that_is_taken_away_ends_answers(provider: Node, getter: Node, both: None) -> None:
    provider.keep(ARTIFACT)
    async with provider.serving():
        connection = await connected(getter, provider)
        assert await asyncio.to_thread(_fetch, connection, 0) == ARTIFACT.chunks[0]
        provider.book.add(dataclasses.replace(provider.book.get("getter"), roles=("push",)))
        with pytest.raises(NotFoundError):
            await asyncio.to_thread(_fetch, connection, 0)
        connection.close()


@pytest.mark.parametrize("how", ["removed", "revoked"])
async def test_an_open_connection_ends_with_the_peers_key(provider: Node, getter: Node, both: None, how: str) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=60)  # idleness is not the reason
    provider.keep(ARTIFACT)
    async with provider.serving() as server:
        connection = await connected(getter, provider)
        assert await asyncio.to_thread(_fetch, connection, 0) == ARTIFACT.chunks[0]
        if how == "removed":
            provider.book.remove("getter")
        else:
            Statements(provider.home).revoke(getter.keys.peer.public, provider.keys.signer)
        assert await nobody(server)
        with pytest.raises(UnavailableError):
            await asyncio.to_thread(_fetch, connection, 0)
        connection.close()


async def test_a_transfer_ends_when_the_providers_key_is_revoked(provider: Node, getter: Node, both: None) -> None:
    getter.settings = dataclasses.replace(getter.settings, stall_timeout_s=30)
    provider.keep(ARTIFACT)
    getter.book.add(Peer("provider", provider.keys.peer.public))
    held, let_go = threading.Event(), threading.Event()

    def hold_back(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        held.set()
        let_go.wait(30)

    async with provider.serving(partial(FaultyServer, faults=Faults(chunk=hold_back))):
        assert (await getter.pull_until_revoked(provider, ARTIFACT.id, held)).code == "peer.revoked"
        let_go.set()


LARGE = build_artifact(tokens=1000, heads=8, dim=64)
RATE = 4 * 1024 * 1024


@pytest.mark.parametrize("limited", ["getter", "provider"])
async def test_rates_hold(provider: Node, getter: Node, both: None, limited: str) -> None:
    provider.keep(LARGE)
    node = getter if limited == "getter" else provider
    dataclasses.replace(node.settings, rate_bytes_per_s=RATE).save(node.home)
    size = sum(map(len, LARGE.chunks))
    async with provider.serving():
        began = time.monotonic()
        report = await getter.pull(provider, LARGE.id)
        assert time.monotonic() - began >= (size - LEAST_BURST) / RATE
    assert report.bytes_unencrypted == report.bytes_moved == size


async def test_a_reader_that_takes_nothing_is_cut_off(provider: Node, getter: Node, both: None) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=1)
    big = build_artifact(tokens=64, block_tokens=64, heads=16, dim=128)
    provider.keep(big)
    async with provider.serving() as server:
        connection = await connected(getter, provider)
        for _ in range(100):
            await asyncio.to_thread(connection.ask, big.id, 0, Encoding.IDENTITY)
        assert await nobody(server)
        connection.close()


async def test_who_asks_for_nothing_is_cut_off(provider: Node, getter: Node, both: None) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=1)
    async with provider.serving() as server:
        connection = await connected(getter, provider)
        assert await nobody(server)
        connection.close()


@pytest.mark.parametrize("bad", ["stalls", "drips", "closes"])
async def test_a_provider_that_is_slow_or_vanishes_is_given_up(
    provider: Node, getter: Node, both: None, bad: str
) -> None:
    from tests.sync.lies import CHUNK_LIES

    lie, code = CHUNK_LIES[{"stalls": "stalls mid-chunk", "drips": "drips", "closes": "closes mid-chunk"}[bad]]
    provider.keep(ARTIFACT)

    def sealed(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        write = session.stream.write
        session.stream.write = (
            lambda *parts: write(  # type: ignore[method-assign]
                *(part + session.stream._seal(part) if bytes(part[:4]) == REPLY else part for part in parts)
            )
        )
        lie(session, request, data)

    async with provider.serving(partial(FaultyServer, faults=Faults(chunk=sealed))):
        with pytest.raises(CodedError) as caught:
            await getter.pull(provider, ARTIFACT.id, settings={"stall_timeout_s": 2})
    assert caught.value.code == code
    assert getter.store.whole(ARTIFACT.id) is None


def silent(secured: ssl.SSLSocket, request: bytes) -> None:
    pass


def still_in_tls(secured: ssl.SSLSocket, request: bytes) -> None:
    secured.sendall(request)


def without_a_goodbye(secured: ssl.SSLSocket, request: bytes) -> None:
    socket.socket.send(secured, request)


def half_closed(secured: ssl.SSLSocket, request: bytes) -> None:
    socket.socket.shutdown(secured, socket.SHUT_WR)


@pytest.mark.parametrize("how", [silent, still_in_tls, without_a_goodbye, half_closed])
async def test_nothing_is_heard_in_the_clear_before_both_have_left_tls(
    provider: Node, getter: Node, both: None, how: Callable[[ssl.SSLSocket, bytes], None]
) -> None:
    """Otherwise somebody on the way could end TLS for one side, and speak to it."""
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=1)
    provider.keep(ARTIFACT)
    faults = Faults()
    context = NodeIdentity(getter.keys.peer).client_context(provider.keys.peer.public, unencrypted.ALPN)

    def handshake() -> tuple[ssl.SSLSocket, bytes]:
        host, port = provider.address.split(":")
        secured = context.wrap_socket(socket.create_connection((host, int(port)), timeout=10))
        request = BulkRequest(Verb.GET, ARTIFACT.id, 0).encode()
        return secured, request + Seals(secured.recv(KEY_BYTES), Side.ASKING).next(request)

    async with provider.serving(partial(FaultyServer, faults=faults)) as server:
        secured, request = await asyncio.to_thread(handshake)
        with secured:
            how(secured, request)
            assert await nobody(server)
    assert faults.chunks == []


@pytest.mark.parametrize("networks", [LOOPBACK, ()])
async def test_strangers_get_nothing_on_this_lane_either(
    provider: Node, make_node: Callable[..., Node], networks: tuple[str, ...]
) -> None:
    """Nor does a known peer that names no other lane get one that is not there for it."""
    allow(provider, networks=networks)
    who = make_node("stranger")
    if not networks:
        provider.meet(who, "get")

    def knock() -> None:
        context = NodeIdentity(who.keys.peer).client_context(provider.keys.peer.public, unencrypted.ALPN)
        host, port = provider.address.split(":")
        with context.wrap_socket(socket.create_connection((host, int(port)), timeout=10)) as secured:
            if not secured.recv(1):
                raise ConnectionResetError("closed")

    async with provider.serving():
        with pytest.raises((ssl.SSLError, ConnectionResetError, BrokenPipeError)):
            await asyncio.to_thread(knock)


async def test_a_stop_waits_for_nobody_who_is_idle(provider: Node, getter: Node, both: None) -> None:
    provider.settings = dataclasses.replace(provider.settings, stall_timeout_s=60)
    async with provider.serving() as server:
        connection = await connected(getter, provider)
        await server.stop()
        assert server.connections == 0
        connection.close()
