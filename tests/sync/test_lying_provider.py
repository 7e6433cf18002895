"""A provider that lies in every way it can: each lie has its code, and leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from kvsync.pack.planes import PlaneCoder
from kvsync.pack.shape import leaf_shape
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import MiB
from kvsync_protocol.messages import RefList
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, Artifact
from tests.sync.faulty import Faults, FaultyServer, FaultySession, envelope_alone
from tests.sync.lies import ARTIFACT, CHUNK_LIES, OTHER, bomb, plain, wrong_bytes
from tests.sync.nodes import Node

STRANGER = SigningKey(b"s" * 32)
BAD = 5
"""The leaf that the provider lies about; the others it serves honestly."""


async def lied_to(provider: Node, getter: Node, faults: Faults, wanted: object, **settings: object) -> CodedError:
    async with provider.serving(partial(FaultyServer, faults=faults)):
        with pytest.raises(CodedError) as caught:
            await getter.pull(provider, wanted, settings=settings)
    assert getter.store.artifacts() == []
    assert getter.store.refs() == []
    assert getter.store.fsck().clean
    return caught.value


async def honest_pull_fetches_only_the_rest(provider: Node, getter: Node) -> None:
    here = {i for i, leaf in enumerate(ARTIFACT.manifest.check_leaves(ARTIFACT.leaves).leaves)
            if getter.store.has_chunk(leaf.digest)}  # fmt: skip
    faults = Faults()
    async with provider.serving(partial(FaultyServer, faults=faults)):
        report = await getter.pull(provider, ARTIFACT.id)
    assert sorted(faults.chunks) == sorted(set(range(len(ARTIFACT.chunks))) - here)
    assert report.chunks_moved == len(faults.chunks)
    assert getter.store.fsck().clean
    assert [stored.artifact for stored in getter.store.artifacts()] == [ARTIFACT.id]


@pytest.mark.parametrize(("lie", "code"), CHUNK_LIES.values(), ids=CHUNK_LIES.keys())
async def test_a_lie_about_a_chunk_ends_the_pull_and_keeps_what_was_verified(
    provider: Node, getter: Node, lie: Callable[..., None], code: str
) -> None:
    provider.keep(ARTIFACT)
    faults = Faults(chunk=lie, leaves={BAD})
    error = await lied_to(provider, getter, faults, ARTIFACT.id, encoding="zstd", stall_timeout_s=2)
    assert error.code == code
    if code.split(".")[0] in ("integrity", "codec", "bulk"):
        assert (error.fields["index"], error.fields["peer"]) == (BAD, "provider")
        assert faults.chunks.count(BAD) == 4  # once, and three times again
    await honest_pull_fetches_only_the_rest(provider, getter)


async def test_an_encoding_that_was_not_asked_for_is_refused(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    error = await lied_to(provider, getter, Faults(chunk=bomb, leaves={BAD}), ARTIFACT.id)
    assert error.code == "bulk.encoding"


def shapeless(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.PLANES, len(data)).encode(), b"\xff" * len(data))


def other_numbers(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    shape = leaf_shape(ARTIFACT.manifest.layout, request.index)
    body = PlaneCoder().encode(memoryview(bytes(len(data))), shape)
    session.stream.write(BulkReply(Status.OK, Encoding.PLANES, len(body)).encode(), body)


@pytest.mark.parametrize(("lie", "code"), [(shapeless, "codec.frame"), (other_numbers, "integrity.chunk")])
async def test_planes_that_lie_end_the_pull_and_keep_what_was_verified(
    provider: Node, getter: Node, lie: Callable[..., None], code: str
) -> None:
    provider.keep(ARTIFACT)
    error = await lied_to(provider, getter, Faults(chunk=lie, leaves={BAD}), ARTIFACT.id, encoding="planes")
    assert (error.code, error.fields["index"], error.fields["peer"]) == (code, BAD, "provider")
    await honest_pull_fetches_only_the_rest(provider, getter)


async def test_a_chunk_that_is_wrong_once_is_fetched_again(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    faults = Faults(leaves={BAD})

    def once(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        faults.leaves = set()
        wrong_bytes(session, request, data)

    faults.chunk = once
    async with provider.serving(partial(FaultyServer, faults=faults)):
        report = await getter.pull(provider, ARTIFACT.id)
    assert report.resent == 1
    assert sorted(faults.chunks) == sorted([*range(len(ARTIFACT.chunks)), BAD])
    assert getter.store.fsck().clean


def flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


TABLE_LIES = {
    "signed by a stranger": (Faults(envelope=lambda _: ARTIFACT.manifest.seal(STRANGER).encode()),
                             "trust.untrusted_signer"),
    "another artifact": (Faults(envelope=lambda _: OTHER.envelope.encode()), "integrity.artifact"),
    "no JSON": (Faults(envelope=lambda _: b"<html>"), "json.syntax"),
    "an endless envelope": (Faults(envelope=lambda _: b" " * (3 * MiB)), "message.size"),
    "another leaf table": (Faults(leaf_table=flip), "integrity.leaf_table"),
    "a cut leaf table": (Faults(leaf_table=lambda d: d[:-40]), "integrity.leaf_table"),
    "an endless leaf table": (Faults(leaf_table=lambda d: d + b"\0" * MiB), "message.size"),
    "other tokens": (Faults(tokens=flip), "integrity.tokens"),
    "too many tokens": (Faults(tokens=lambda d: d + b"\0"), "message.size"),
    "an answer cut between two parts": (Faults(description=envelope_alone), "message.size"),
    "an answer cut within a part": (Faults(description=lambda d: d[:-1]), "message.size"),
    "a part of four gigabytes": (Faults(description=lambda d: b"\xff" * 4 + d[4:]), "message.size"),
    "more than was asked for": (Faults(description=lambda d: d + b"\0"), "message.size"),
}  # fmt: skip


@pytest.mark.parametrize(("faults", "code"), TABLE_LIES.values(), ids=TABLE_LIES.keys())
async def test_a_lie_before_the_chunks_ends_the_pull_there(
    provider: Node, getter: Node, faults: Faults, code: str
) -> None:
    provider.keep(ARTIFACT)
    error = await lied_to(provider, getter, faults, ARTIFACT.id)
    assert error.code == code
    assert faults.chunks == []
    await honest_pull_fetches_only_the_rest(provider, getter)


def answer(ref: Ref, key: SigningKey) -> Faults:
    return Faults(refs=lambda _: RefList((ref.seal(key),)).encode())


REF_LIES = {
    "another name": (answer(Ref("other", ARTIFACT.id, 1), SIGNER), "trust.ref_name"),
    "signed by a stranger": (answer(Ref("doc", ARTIFACT.id, 1), STRANGER), "trust.untrusted_signer"),
    "an artifact's envelope": (Faults(refs=lambda _: RefList((ARTIFACT.envelope,)).encode()), "trust.payload_type"),
    "no list": (Faults(refs=lambda _: b"[]"), "json.not_object"),
}


@pytest.mark.parametrize(("faults", "code"), REF_LIES.values(), ids=REF_LIES.keys())
async def test_a_lie_about_a_name_is_refused(provider: Node, getter: Node, faults: Faults, code: str) -> None:
    provider.keep(ARTIFACT)
    error = await lied_to(provider, getter, faults, "doc")
    assert error.code == code


async def test_a_slow_pull_ends_at_its_deadline(
    provider: Node, getter: Node, make_artifact: Callable[..., Artifact]
) -> None:
    provider.keep(ARTIFACT)

    def slow(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        time.sleep(0.3)
        plain(session, bytes(data))

    error = await lied_to(provider, getter, Faults(chunk=slow), ARTIFACT.id, transfer_deadline_s=1)
    assert error.code == "peer.deadline"
    await honest_pull_fetches_only_the_rest(provider, getter)
