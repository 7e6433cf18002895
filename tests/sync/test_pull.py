"""Pulls between two nodes: what arrives, what is asked first, what is refused."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from functools import partial

import pytest

from kvsync.errors import NotFoundError, PolicyError, UsageError
from kvsync.keys import Peer
from kvsync.pack import ArtifactReader
from kvsync.store import StoreLimits
from kvsync_protocol.bulk import BulkRequest
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError, IntegrityError, MalformedError, MismatchError, TrustError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, Artifact
from tests.sync.faulty import Faults, FaultyServer, FaultySession, envelope_alone
from tests.sync.lies import plain
from tests.sync.nodes import Node

Make = Callable[..., Artifact]
Prints = Callable[..., Fingerprints]


def name_it(node: Node, name: str, artifact: Artifact, sequence: int = 1, **more: int) -> None:
    ref = Ref(name, artifact.id, sequence, **more)
    node.store.set_ref(ref, ref.seal(SIGNER), SIGNER.public)


@pytest.mark.parametrize("encoding", ["identity", "zstd", "planes", "auto"])
async def test_a_pulled_artifact_has_every_byte_of_the_original(
    provider: Node, getter: Node, make_artifact: Make, encoding: str
) -> None:
    artifact = make_artifact(tokens=100, heads=8, dim=64)
    provider.keep(artifact)
    seen: list[tuple[str, int, int, str]] = []
    async with provider.serving():
        report = await getter.pull(
            provider, artifact.id, settings={"encoding": encoding}, progress=lambda *step: seen.append(step)
        )
    stored = getter.store.artifact(artifact.id)
    assert stored.leaves().encode() == artifact.leaves
    assert stored.tokens() == artifact.token_ids
    for leaf, chunk in zip(stored.leaves().leaves, artifact.chunks, strict=True):
        assert sha256(chunk) == leaf.digest
        assert getter.store.has_chunk(leaf.digest)
    assert getter.store.fsck().clean
    total = sum(map(len, artifact.chunks))
    assert (report.bytes_moved, report.bytes_total, report.bytes_here, report.resent) == (total, total, 0, 0)
    assert 0 < report.bytes_wire <= total
    assert report.chunks_moved == len(artifact.chunks)
    assert sorted(seen)[-1] == ("pull", total, total, "bytes")


@pytest.mark.parametrize(
    ("far", "encoding", "ahead"),
    [(False, "identity", False), (True, "identity", False), (False, "planes", True), (True, "planes", False)],
)
async def test_a_kill_loses_no_more_than_two_chunks_for_each_stream_of_the_settings(
    provider: Node,
    getter: Node,
    make_artifact: Make,
    monkeypatch: pytest.MonkeyPatch,
    far: bool,
    encoding: str,
    ahead: bool,
) -> None:
    """A far line gets twice the connections; a near one asks ahead where the line would wait for a codec."""
    if far:
        monkeypatch.setattr("kvsync.peer.client.FAR_S", 0.0)
    asked_ahead: list[int] = []
    sessions: set[FaultySession] = set()

    def look(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        sessions.add(session)
        if select.select([session.stream._connection], [], [], 0.02)[0]:
            asked_ahead.append(request.index)
        plain(session, bytes(data))

    artifact = make_artifact(tokens=100)
    provider.keep(artifact)
    async with provider.serving(partial(FaultyServer, faults=Faults(chunk=look))):
        report = await getter.pull(provider, artifact.id, settings={"streams": 3, "encoding": encoding})
    assert bool(asked_ahead) == ahead
    assert (report.streams, len(sessions)) == ((6, 6) if far else (3, 3))
    assert report.chunks_moved == len(artifact.chunks) >= 2 * report.streams


async def test_compressible_chunks_cross_the_wire_smaller(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact(tokens=40)
    provider.keep(artifact)  # its block headers compress
    async with provider.serving():
        report = await getter.pull(provider, artifact.id, settings={"encoding": "zstd"})
    assert report.bytes_wire < report.bytes_moved == report.bytes_total
    assert getter.store.fsck().clean


async def test_a_second_pull_moves_nothing_and_adds_signatures(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    second = SigningKey(b"2" * 32)
    async with provider.serving():
        await getter.pull(provider, artifact.id)
        provider.store.add_signatures(artifact.manifest.seal(second), {second.public})
        getter.trust.add("second", second.public)
        report = await getter.pull(provider, artifact.id)
    assert (report.chunks_moved, report.bytes_here) == (0, report.bytes_total)
    assert len(getter.store.artifact(artifact.id).envelope.signatures) == 2


async def test_a_chunk_that_a_reader_found_damaged_is_fetched_again_and_no_other(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=40)
    provider.keep(artifact)
    getter.keep(artifact)
    stored = getter.store.artifact(artifact.id)
    digest = stored.leaves().leaves[1].digest
    path = getter.home.store_dir / "chunks" / digest.hex[:2] / digest.hex
    path.write_bytes(bytes(path.stat().st_size))
    reader = ArtifactReader(getter.store, artifact.id, stored.manifest.layout, stored.leaves())
    with pytest.raises(IntegrityError):
        reader.verify()
    async with provider.serving():
        report = await getter.pull(provider, artifact.id)
    assert report.chunks_moved == 1
    assert reader.verify().chunks == len(artifact.chunks)
    assert getter.store.fsck().clean


async def test_chunks_shared_with_another_artifact_are_not_moved(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    head = tuple(range(32))
    short, long = make_artifact(1, 32, head=head), make_artifact(2, 60, head=head)
    provider.keep(long)
    getter.keep(short)
    async with provider.serving():
        report = await getter.pull(provider, long.id)
    assert report.bytes_here == sum(map(len, short.chunks[:4]))
    assert report.chunks_moved == len(long.chunks) - 4
    assert getter.store.fsck().clean


async def test_a_name_leads_to_the_artifact_and_is_kept(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    name_it(provider, "team/handbook", artifact)
    async with provider.serving():
        report = await getter.pull(provider, "team/handbook")
    assert (report.name, report.artifact) == ("team/handbook", artifact.id)
    assert getter.store.resolve("team/handbook") == artifact.id


async def test_an_older_name_than_one_seen_is_refused(provider: Node, getter: Node, make_artifact: Make) -> None:
    old, new = make_artifact(1), make_artifact(2)
    provider.keep(old)
    name_it(provider, "doc", old, sequence=4)
    name_it(getter, "doc", new, sequence=5)
    async with provider.serving():
        with pytest.raises(TrustError) as caught:
            await getter.pull(provider, "doc")
    assert caught.value.code == "trust.rollback"
    assert getter.store.artifacts() == []


async def test_an_expired_name_is_not_followed(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    name_it(provider, "doc", artifact, expires=int(time.time()) - 10)
    async with provider.serving():
        with pytest.raises(TrustError) as caught:
            await getter.pull(provider, "doc")
    assert caught.value.code == "trust.expired"


async def test_fingerprints_are_compared_before_anything_else_is_read(
    provider: Node, getter: Node, make_artifact: Make, make_fingerprints: Prints
) -> None:
    artifact = make_artifact(prints=make_fingerprints(model="theirs"))
    provider.keep(artifact)
    faults = Faults(description=envelope_alone)
    async with provider.serving(partial(FaultyServer, faults=faults)):
        with pytest.raises(MismatchError) as caught:
            await getter.pull(provider, artifact.id, fingerprints=make_fingerprints(model="ours"))
    assert faults.chunks == []
    assert caught.value.code == "mismatch.compatibility"
    assert caught.value.fields["differing"] == ["weights"]


@pytest.mark.parametrize(
    ("accept", "canary", "code"),
    [("equal", "c0", "mismatch.numerics"), ("canary", "c1", "mismatch.canary"), ("canary", "c0", None)],
    ids=["versions must be equal", "another canary", "an equal canary"],
)
async def test_the_accept_policy_decides_about_other_versions(
    provider: Node,
    getter: Node,
    make_artifact: Make,
    make_fingerprints: Prints,
    accept: str,
    canary: str,
    code: str | None,
) -> None:
    artifact = make_artifact(prints=make_fingerprints(host="there", canary=canary))
    provider.keep(artifact)
    async with provider.serving():
        ours = make_fingerprints(host="here", canary="c0")
        settings = {"accept": accept}
        if code is None:
            report = await getter.pull(provider, artifact.id, fingerprints=ours, settings=settings)
            assert "torch" in {v.policy: v.detail for v in report.verdicts}["fingerprints"]
            return
        with pytest.raises(MismatchError) as caught:
            await getter.pull(provider, artifact.id, fingerprints=ours, settings=settings)
    assert caught.value.code == code


async def test_a_carrier_without_a_model_says_that_nothing_was_compared(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    async with provider.serving():
        report = await getter.pull(provider, artifact.id)
    assert "not compared" in {v.policy: v.detail for v in report.verdicts}["fingerprints"]


async def test_a_dry_run_changes_nothing_and_asks_every_policy(
    provider: Node, getter: Node, make_artifact: Make, make_fingerprints: Prints
) -> None:
    head = tuple(range(32))
    short, long = make_artifact(1, 32, head=head), make_artifact(2, 60, head=head)
    provider.keep(long)
    getter.keep(short)
    name_it(provider, "doc", long)
    async with provider.serving():
        report = await getter.pull(
            provider,
            "doc",
            dry_run=True,
            settings={"max_artifact_bytes": 10},
            fingerprints=make_fingerprints(model="another"),
        )
    found = {verdict.policy: (verdict.allowed, verdict.code) for verdict in report.verdicts}
    assert found == {
        "name": (True, ""),
        "signer": (True, ""),
        "size": (False, "policy.size"),
        "fingerprints": (False, "mismatch.compatibility"),
        **dict.fromkeys(("audits", "audited", "signers", "divergence"), (True, "")),
    }
    assert not report.allowed
    assert report.chunks_moved == len(long.chunks) - 4
    assert report.bytes_here == sum(map(len, short.chunks[:4]))
    assert [stored.artifact for stored in getter.store.artifacts()] == [short.id]
    assert getter.store.refs() == []


async def test_an_artifact_over_the_size_limit_is_refused(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    async with provider.serving():
        with pytest.raises(PolicyError) as caught:
            await getter.pull(provider, artifact.id, settings={"max_artifact_bytes": 1000})
    assert caught.value.code == "policy.size"


async def test_a_full_store_refuses_and_keeps_what_it_has(
    provider: Node, make_node: Callable[..., Node], make_artifact: Make
) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    small = make_node("small", limits=StoreLimits(quota_bytes=2000, free_floor_bytes=0))
    small.trust.add("signer", SIGNER.public)
    provider.meet(small, "get")
    async with provider.serving():
        with pytest.raises(CodedError) as caught:
            await small.pull(provider, artifact.id)
    assert caught.value.code in ("store.quota", "store.full")
    assert small.store.artifacts() == []
    assert small.store.fsck().clean


@pytest.mark.parametrize(
    ("wanted", "kind", "code"),
    [
        ("f" * 64, NotFoundError, "store.unknown_artifact"),
        ("no/such/name", NotFoundError, "peer.unknown_name"),
        ("Not A Name", MalformedError, "ref.name"),
        ("../../etc/passwd", MalformedError, "ref.name"),
    ],
)
async def test_what_is_not_there_is_named(
    provider: Node, getter: Node, wanted: str, kind: type[CodedError], code: str
) -> None:
    async with provider.serving():
        with pytest.raises(kind) as caught:
            await getter.pull(provider, wanted)
    assert caught.value.code == code


async def test_a_peer_without_the_role_cannot_tell_what_exists(
    provider: Node, make_node: Callable[..., Node], make_artifact: Make
) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    outsider = make_node("outsider")
    outsider.trust.add("signer", SIGNER.public)
    provider.meet(outsider, "push")
    answers = set()
    async with provider.serving():
        for wanted in (artifact.id, "f" * 64, "a-name"):
            with pytest.raises(PolicyError) as caught:
                await outsider.pull(provider, wanted)
            answers.add((caught.value.code, caught.value.message))
    assert len(answers) == 1
    assert answers.pop()[0] == "peer.role"


async def test_a_getter_that_trusts_no_signer_takes_nothing(
    provider: Node, make_node: Callable[..., Node], make_artifact: Make
) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    stranger = make_node("careful")
    provider.meet(stranger, "get")
    faults = Faults(description=envelope_alone)
    async with provider.serving(partial(FaultyServer, faults=faults)):
        with pytest.raises(TrustError) as caught:
            await stranger.pull(provider, artifact.id)
    assert faults.chunks == []
    assert caught.value.code == "trust.untrusted_signer"


async def test_the_first_address_that_answers_is_taken(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact()
    provider.keep(artifact)
    async with provider.serving():
        peer = provider.as_peer("127.0.0.1:1", provider.address)
        assert (await getter.pull(provider, artifact.id, peer=peer)).artifact == artifact.id


async def test_an_unreachable_peer_is_named_with_its_addresses(provider: Node, getter: Node) -> None:
    with pytest.raises(CodedError) as caught:
        await getter.pull(provider, "f" * 64, peer=provider.as_peer("127.0.0.1:1", "127.0.0.1:2"))
    assert caught.value.code == "peer.unreachable"
    assert caught.value.fields["addresses"] == ["127.0.0.1:1", "127.0.0.1:2"]
    assert "connection refused" in caught.value.message


async def test_a_peer_without_an_address_is_a_usage_error(provider: Node, getter: Node) -> None:
    with pytest.raises(UsageError) as caught:
        await getter.pull(provider, "f" * 64, peer=Peer("p", provider.keys.peer.public))
    assert caught.value.code == "peer.no_address"


async def test_two_pulls_at_once_download_every_chunk_once(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact(tokens=200, heads=4, dim=32)
    provider.keep(artifact)
    async with provider.serving():
        reports = await asyncio.gather(*(getter.pull(provider, artifact.id) for _ in range(3)))
    assert sum(report.chunks_moved for report in reports) == len(artifact.chunks)
    assert getter.store.fsck().clean
