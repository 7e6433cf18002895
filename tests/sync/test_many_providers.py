"""Several providers: with one honest one every pull ends well, with none it ends with everybody's reason."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

import pytest

from kvsync.errors import NotFoundError, UsageError
from kvsync.peer.blame import BlameBook
from kvsync.sync import PullReport
from kvsync_protocol.bulk import BulkRequest, Status
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError
from kvsync_protocol.have import Have
from kvsync_protocol.messages import RefList
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, build_artifact
from tests.sync.faulty import Faults, FaultyServer, FaultySession
from tests.sync.lies import ARTIFACT, CHUNK_LIES, OTHER, of_another_artifact, plain, refuses, silent, wrong_bytes
from tests.sync.nodes import Node

MakeNode = Callable[..., Node]
LIES = {
    **CHUNK_LIES,
    "bytes of another artifact": (of_another_artifact, "bulk.size"),
    "never answers": (silent, "peer.stalled"),
}
BLAMED = ("integrity", "codec", "bulk")


def unhurried(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    time.sleep(0.02)
    plain(session, bytes(data))


class Crowd:
    """A getter and providers whom it asks at once, each with faults of its own."""

    def __init__(self, make_node: MakeNode) -> None:
        self._make = make_node
        self.getter = make_node("getter")
        self.getter.trust.add("signer", SIGNER.public)
        self.providers: dict[str, tuple[Node, Faults]] = {}

    def add(self, name: str, faults: Faults | None = None, *artifacts: object) -> Node:
        node = self._make(name)
        node.meet(self.getter, "get")
        node.trust.add("signer", SIGNER.public)
        for artifact in artifacts or (ARTIFACT,):
            node.keep(artifact)
        self.providers[name] = node, faults or Faults()
        return node

    async def pull(self, wanted: object = ARTIFACT.id, **options: object) -> PullReport:
        async with AsyncExitStack() as stack:
            for node, faults in self.providers.values():
                await stack.enter_async_context(node.serving(partial(FaultyServer, faults=faults)))
            peers = [node.as_peer() for node, _ in self.providers.values()]
            return await self.getter.pull(self.getter, wanted, peer=peers, settings=options)

    def check(self, artifact: object = ARTIFACT) -> None:
        assert self.getter.store.fsck().clean
        assert self.getter.store.whole(artifact.id) is not None  # type: ignore[attr-defined]

    def blamed(self) -> set[str]:
        """Names of those of whom a record was signed."""
        found = BlameBook(self.getter.home).records(frozenset({self.getter.keys.signer.public}))
        keys = {node.keys.peer.public: name for name, (node, _) in self.providers.items()}
        return {keys[blame.peer] for blame in found}


@pytest.fixture
def crowd(make_node: MakeNode) -> Crowd:
    return Crowd(make_node)


@pytest.mark.parametrize(("lie", "code"), LIES.values(), ids=LIES.keys())
async def test_one_honest_provider_is_enough(crowd: Crowd, lie: Callable[..., None], code: str) -> None:
    crowd.add("liar", Faults(chunk=lie))
    crowd.add("honest", Faults(chunk=unhurried))
    report = await crowd.pull(stall_timeout_s=3, encoding="zstd")
    crowd.check()
    assert {source.peer: source.chunks for source in report.sources} == {"liar": 0, "honest": len(ARTIFACT.chunks)}
    assert crowd.providers["liar"][1].chunks
    assert crowd.blamed() == ({"liar"} if code.split(".")[0] in BLAMED else set())


@pytest.mark.parametrize(("lie", "code"), LIES.values(), ids=LIES.keys())
async def test_with_no_honest_provider_a_pull_ends_with_the_reason(
    crowd: Crowd, lie: Callable[..., None], code: str
) -> None:
    crowd.add("liar", Faults(chunk=lie))
    crowd.add("accomplice", Faults(chunk=lie))
    began = time.monotonic()
    with pytest.raises(CodedError) as caught:
        await crowd.pull(stall_timeout_s=2, encoding="zstd", transfer_deadline_s=12)
    assert time.monotonic() - began < 24
    reasons = caught.value.fields["providers"]
    assert isinstance(reasons, dict)
    assert set(reasons) == {"liar", "accomplice"}
    assert set(reasons.values()) <= {code, "peer.deadline", "integrity.chunk", "bulk.size"}
    assert crowd.getter.store.artifacts() == []
    assert crowd.getter.store.fsck().clean


def stale(faults: Faults, artifact: object, sequence: int) -> Faults:
    ref = Ref("doc", artifact.id, sequence)  # type: ignore[attr-defined]
    faults.refs = lambda _: RefList((ref.seal(SIGNER),)).encode()
    return faults


async def test_the_newest_word_on_a_name_counts_whoever_answers_first(crowd: Crowd) -> None:
    crowd.add("stale", stale(Faults(), OTHER, 1), OTHER)
    crowd.add("fresh", stale(Faults(), ARTIFACT, 2))
    report = await crowd.pull("doc")
    assert report.artifact == ARTIFACT.id
    assert crowd.getter.store.resolve("doc") == ARTIFACT.id
    crowd.check()


TABLE_LIES = {
    "another artifact": Faults(envelope=lambda _: OTHER.envelope.encode()),
    "signed by a stranger": Faults(envelope=lambda _: ARTIFACT.manifest.seal(SigningKey(b"s" * 32)).encode()),
    "no JSON": Faults(envelope=lambda _: b"<html>"),
    "another leaf table": Faults(leaf_table=lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "other tokens": Faults(tokens=lambda data: data[:-4] + b"\x01\0\0\0"),
    "no list of chunks": Faults(have=lambda _: b"[]"),
    "a list of other leaves": Faults(have=lambda _: Have.of([1], 3).encode()),
    "no chunks at all": Faults(have=lambda _: Have.of([], len(ARTIFACT.chunks)).encode()),
}


@pytest.mark.parametrize("faults", TABLE_LIES.values(), ids=TABLE_LIES.keys())
async def test_a_lie_about_the_artifact_costs_the_liar_only(crowd: Crowd, faults: Faults) -> None:
    crowd.add("liar", faults)
    crowd.add("honest")
    await crowd.pull(streams=2)
    crowd.check()


async def test_who_cannot_be_reached_refuses_or_has_nothing_stops_nobody(crowd: Crowd) -> None:
    crowd.add("honest")
    strangers = crowd.add("stranger")
    strangers.book.remove("getter")
    crowd.add("empty", None, OTHER)
    gone = crowd.add("gone")
    async with AsyncExitStack() as stack:
        for name in ("honest", "stranger", "empty"):
            await stack.enter_async_context(crowd.providers[name][0].serving())
        async with gone.serving():
            pass
        peers = [node.as_peer() for node, _ in crowd.providers.values()]
        await crowd.getter.pull(crowd.getter, ARTIFACT.id, peer=peers)
    crowd.check()


async def test_nobody_who_has_it_is_everybodys_reason(crowd: Crowd) -> None:
    crowd.add("one", None, OTHER)
    crowd.add("two", None, OTHER)
    with pytest.raises(NotFoundError) as caught:
        await crowd.pull()
    assert caught.value.code == "store.unknown_artifact"
    assert caught.value.fields["providers"] == dict.fromkeys(("one", "two"), "store.unknown_artifact")


async def test_without_a_peer_there_is_nothing_to_ask(getter: Node) -> None:
    with pytest.raises(UsageError) as caught:
        await getter.pull(getter, ARTIFACT.id, peer=[])
    assert caught.value.code == "pull.no_source"


async def test_providers_that_are_still_getting_serve_what_they_have(crowd: Crowd) -> None:
    """The only one that can describe the artifact gives no chunk of it."""
    crowd.add("describer", Faults(chunk=refuses(Status.FAILED)))
    with contextlib.ExitStack() as stack:
        for place in (0, 1):
            node = crowd.add(f"half{place}", None, OTHER)
            draft = stack.enter_context(node.store.pull_draft(*ARTIFACT.parts))
            for index in range(place, len(ARTIFACT.chunks), 2):
                draft.put(index, ARTIFACT.chunks[index])
        report = await crowd.pull(streams=3)
    crowd.check()
    found = {source.peer: source.chunks for source in report.sources}
    assert found["half0"] + found["half1"] == len(ARTIFACT.chunks)
    assert found["half1"] == len(ARTIFACT.chunks) // 2


async def test_what_a_provider_gets_meanwhile_is_asked_for_too(crowd: Crowd) -> None:
    crowd.add("describer", Faults(chunk=refuses(Status.FAILED)))
    node = crowd.add("late", None, OTHER)
    with node.store.pull_draft(*ARTIFACT.parts) as draft:
        pulling = asyncio.create_task(crowd.pull(stall_timeout_s=10))
        for index, chunk in enumerate(ARTIFACT.chunks):
            await asyncio.sleep(0.05)
            draft.put(index, chunk)
        await asyncio.wait_for(pulling, 20)
    crowd.check()


async def test_missing_chunks_that_nobody_has_end_the_pull(crowd: Crowd) -> None:
    crowd.add("describer", Faults(chunk=refuses(Status.NOT_FOUND)))
    node = crowd.add("half", None, OTHER)
    with node.store.pull_draft(*ARTIFACT.parts) as draft:
        for index in range(0, len(ARTIFACT.chunks), 2):
            draft.put(index, ARTIFACT.chunks[index])
        with pytest.raises(CodedError) as caught:
            await crowd.pull(stall_timeout_s=3)
    reasons = caught.value.fields["providers"]
    assert isinstance(reasons, dict)
    assert reasons["half"] == "peer.chunk_gone"
    assert crowd.getter.store.artifacts() == []


async def test_a_provider_revoked_in_the_middle_loses_its_part_only(crowd: Crowd) -> None:
    def slow(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        time.sleep(0.3)
        plain(session, bytes(data))

    crowd.add("revoked", Faults(chunk=silent))
    crowd.add("honest", Faults(chunk=slow))
    pulling = asyncio.create_task(crowd.pull(stall_timeout_s=20))
    await asyncio.sleep(0.5)
    crowd.providers["revoked"][0].book.remove("getter")
    report = await asyncio.wait_for(pulling, 15)
    assert report.chunks_moved == len(ARTIFACT.chunks)
    crowd.check()


async def test_getters_that_pull_at_once_serve_each_other(make_node: MakeNode) -> None:
    large = build_artifact(tokens=600)
    origin = make_node("origin")
    origin.keep(large)
    getters = [make_node(f"getter{number}") for number in range(3)]
    for node in (origin, *getters):
        node.trust.add("signer", SIGNER.public)
        for other in getters:
            if other is not node:
                node.meet(other, "get")
    faults = Faults(chunk=unhurried)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(origin.serving(partial(FaultyServer, faults=faults)))
        for node in getters:
            await stack.enter_async_context(node.serving())

        async def get(node: Node) -> PullReport:
            peers = [other.as_peer() for other in (origin, *getters) if other is not node]
            return await node.pull(origin, large.id, peer=peers)

        reports = await asyncio.gather(*map(get, getters))
    for node in getters:
        assert node.store.fsck().clean
        assert node.store.whole(large.id) is not None
    assert len(faults.chunks) < 2.5 * len(large.chunks)  # three pulls of one provider would be three times
    among = sum(source.chunks for report in reports for source in report.sources if source.peer != "origin")
    assert among >= len(large.chunks) // 2


async def test_a_wrong_chunk_is_blamed_with_what_came(crowd: Crowd) -> None:
    liar = crowd.add("liar", Faults(chunk=wrong_bytes, leaves={5}))
    with pytest.raises(CodedError):
        await crowd.pull()
    book, own = BlameBook(crowd.getter.home), crowd.getter.keys.signer.public
    (blame,) = book.records(frozenset({own}))  # one, however often the same came
    wrong = sha256(bytes([ARTIFACT.chunks[5][0] ^ 1]) + ARTIFACT.chunks[5][1:])
    assert (blame.peer, blame.artifact, blame.leaf) == (liar.keys.peer.public, ARTIFACT.id, 5)
    assert (blame.code, blame.found) == ("integrity.chunk", wrong)
    assert book.records(frozenset({SIGNER.public})) == []
