"""The receiver's disk takes its time: nobody who waits takes that for silence, and nobody else waits."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
from aiohttp import web

from kvsync.config import Settings
from kvsync.errors import UnavailableError
from kvsync.keys import KeySpread
from kvsync.keys.statements import Statements
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.processing import Processing
from kvsync.store import drafts
from kvsync.store.chunks import ChunkFiles
from kvsync_protocol import routes
from kvsync_protocol.errors import CodedError
from kvsync_protocol.messages import Accepted, Commit
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, build_artifact
from tests.sync.nodes import Node

ARTIFACT = build_artifact(tokens=40)
STALL_S = 1


class Disk:
    """Its gate holds up what `name` of `place` does, before it does it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate = threading.Event()
        self.waiting = threading.Semaphore(0)
        self._monkeypatch = monkeypatch

    def hold(self, place: object, name: str) -> None:
        work = getattr(place, name)

        def slow(*args: object, **options: object) -> object:
            self.waiting.release()
            assert self.gate.wait(30)
            return work(*args, **options)

        self._monkeypatch.setattr(place, name, slow)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    found = Disk(monkeypatch)
    yield found
    found.gate.set()


@pytest.fixture
def hasty(make_node: Callable[..., Node], provider: Node, getter: Node) -> Node:
    """A getter that waits a second in silence, and no longer."""
    node = make_node("hasty", Settings(stall_timeout_s=STALL_S, transfer_deadline_s=60))
    provider.meet(node, "get", "push")
    return node


def client(node: Node, other: Node, spread: KeySpread | None = None) -> PeerClient:
    return PeerClient(other.as_peer(), NodeIdentity(node.keys.peer), node.settings, Deadline.after(60), spread)


@pytest.mark.parametrize(
    ("place", "name"), [(drafts, "open_account"), (ChunkFiles, "sync")], ids=["to begin", "to publish"]
)
async def test_a_push_waits_for_a_disk_that_takes_longer_than_anybody_may_be_silent(
    provider: Node, hasty: Node, disk: Disk, place: object, name: str
) -> None:
    hasty.keep(ARTIFACT)
    disk.hold(place, name)
    async with provider.serving():
        pushing = asyncio.create_task(hasty.push(provider, ARTIFACT.id))
        assert await asyncio.to_thread(disk.waiting.acquire, timeout=20)
        await asyncio.wait([pushing], timeout=4.5 * STALL_S)  # an answer that only drips has 4 to begin
        assert not pushing.done()
        disk.gate.set()
        report = await pushing
    assert report.chunks_moved == len(ARTIFACT.chunks)
    assert provider.store.whole(ARTIFACT.id) is not None


async def test_those_who_read_do_not_wait_for_those_who_write(provider: Node, getter: Node, disk: Disk) -> None:
    pushed = [build_artifact(seed, 33) for seed in range(6)]
    for artifact in pushed:
        getter.keep(artifact)
    provider.keep(ARTIFACT)
    disk.hold(ChunkFiles, "sync")
    async with provider.serving():
        pushing = asyncio.gather(*(getter.push(provider, artifact.id) for artifact in pushed))
        for _ in range(4):  # as many as write at once
            assert await asyncio.to_thread(disk.waiting.acquire, timeout=20)
        async with client(getter, provider) as asking:
            await asking.hello()
            assert (await asking.envelope(ARTIFACT.id)).payload == ARTIFACT.envelope.payload
        assert not pushing.done()
        disk.gate.set()
        await pushing
    assert provider.store.fsck().clean


async def test_those_who_wait_for_their_turn_hold_up_no_commit(provider: Node, getter: Node, disk: Disk) -> None:
    """Else commits and those who ask what is missing would wait for each other for ever."""
    pushed = [build_artifact(seed, 33) for seed in range(4)]
    for artifact in pushed:
        getter.keep(artifact)
    async with provider.serving(), client(getter, provider) as asking, client(getter, provider) as other:
        for each in (asking, other):
            await each.hello()
        for artifact in pushed:
            await getter.offer(asking, artifact)
        disk.hold(ChunkFiles, "sync")
        commits = [asyncio.create_task(asking.commit(artifact.id, Commit())) for artifact in pushed]
        for _ in commits:
            assert await asyncio.to_thread(disk.waiting.acquire, timeout=20)
        waiting = [asyncio.create_task(other.missing(artifact.manifest)) for artifact in pushed]
        await asyncio.sleep(0.5)  # they are in the queue by now
        disk.gate.set()
        async with asyncio.timeout(20):
            done = await asyncio.gather(*commits, *waiting, return_exceptions=True)
        assert [answer for answer in done[:4] if isinstance(answer, BaseException)] == []
        gone = {answer.code for answer in done[4:] if isinstance(answer, CodedError)}
        assert gone <= {"offer.unknown"}
    assert provider.store.fsck().clean


async def test_news_of_keys_do_not_wait_for_commits(provider: Node, getter: Node, hasty: Node, disk: Disk) -> None:
    provider.keep(ARTIFACT)
    hasty.trust.add("signer", SIGNER.public)
    pushed = [build_artifact(seed, 33) for seed in range(4)]
    for artifact in pushed:
        getter.keep(artifact)
    Statements(hasty.home).revoke(SigningKey.generate().public, hasty.keys.signer)
    disk.hold(ChunkFiles, "sync")
    async with provider.serving():
        pushing = asyncio.gather(*(getter.push(provider, artifact.id) for artifact in pushed))
        for _ in pushed:
            assert await asyncio.to_thread(disk.waiting.acquire, timeout=20)
        async with client(hasty, provider, KeySpread(hasty.home, hasty.trust)) as asking:
            await asking.hello()
            assert (await asking.envelope(ARTIFACT.id)).payload == ARTIFACT.envelope.payload
        assert not pushing.done()
        disk.gate.set()
        await pushing


async def test_a_request_is_forgotten_when_its_connection_breaks_off(
    provider: Node, getter: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "kvsync")  # a record that is kept keeps its error, and that the request
    held: list[weakref.ref[object]] = []
    begin = Processing.__init__

    def noted(self: Processing, request: web.Request) -> None:
        held.append(weakref.ref(request))
        begin(self, request)

    monkeypatch.setattr(Processing, "__init__", noted)
    monkeypatch.setattr("kvsync.peer.processing.TELL_S", 0.05)
    context = NodeIdentity(getter.keys.peer).client_context([provider.keys.peer.public], routes.CONTROL_ALPN)
    async with provider.serving() as server:
        for _ in range(5):
            _, writer = await asyncio.open_connection(*provider.address.rsplit(":", 1), ssl=context)
            writer.write(b"POST /v1/statements HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.transport.abort()
        del writer
        while server.connections:  # noqa: ASYNC110  an end tells nobody
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        gc.collect()
        assert len(held) == 5
        assert [found for found in held if found() is not None] == []


@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_whoever_waits_is_told_so_where_http_knows_how(
    provider: Node, getter: Node, disk: Disk, version: bytes
) -> None:
    getter.keep(ARTIFACT)
    disk.hold(ChunkFiles, "sync")
    context = NodeIdentity(getter.keys.peer).client_context([provider.keys.peer.public], routes.CONTROL_ALPN)
    body = Commit().encode()
    async with provider.serving(), client(getter, provider) as asking:
        await asking.hello()
        await getter.offer(asking, ARTIFACT)
        reader, writer = await asyncio.open_connection(*provider.address.rsplit(":", 1), ssl=context)
        path = routes.path(routes.OFFER_COMMIT, ARTIFACT.id).encode()
        writer.write(b"POST %b HTTP/%b\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path, version, len(body), body))
        assert await asyncio.to_thread(disk.waiting.acquire, timeout=20)
        if version == b"1.1":
            for _ in range(2):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 102 Processing\r\n\r\n"
        else:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.read(1), 1.5)
        disk.gate.set()
        answer = await reader.readuntil(b"\r\n\r\n")
        while answer.startswith(b"HTTP/1.1 102 "):  # the last before the gate
            answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.split(b" ", 2)[1] == b"200"
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        assert Accepted.parse(await reader.readexactly(length)) == Accepted(ARTIFACT.id, complete=True)
        writer.close()


async def test_a_peer_that_says_nothing_over_a_commit_is_not_waited_for(
    provider: Node, hasty: Node, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patience is for those who say that they work."""
    monkeypatch.setattr("kvsync.peer.processing.TELL_S", 30.0)
    hasty.keep(ARTIFACT)
    disk.hold(ChunkFiles, "sync")
    async with provider.serving():
        with pytest.raises(UnavailableError) as caught:
            await hasty.push(provider, ARTIFACT.id)
        disk.gate.set()
    assert caught.value.code == "peer.stalled"
