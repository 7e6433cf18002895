"""Whose word counts, while it counts: heaps of signatures, names of others, trust that ends half-way, healing."""

from __future__ import annotations

import contextlib
import dataclasses
from functools import partial

import pytest

from kvsync.errors import NotFoundError
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.errors import TrustError
from kvsync_protocol.limits import MAX_SIGNATURES
from kvsync_protocol.messages import Commit
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, Artifact, build_artifact
from tests.sync.faulty import Faults, FaultyServer
from tests.sync.nodes import Node

ARTIFACT, OTHER = build_artifact(tokens=100), build_artifact(seed=7, tokens=100)
SECOND = SigningKey(b"2" * 32)
JUNK = tuple(Signature("", bytes([number]) * 64) for number in range(MAX_SIGNATURES - 1))


def crowded(envelope: Envelope) -> Envelope:
    return dataclasses.replace(envelope, signatures=(*JUNK, *envelope.signatures[:1]))


def name_it(node: Node, name: str, artifact: Artifact, sequence: int, key: SigningKey = SIGNER) -> None:
    ref = Ref(name, artifact.id, sequence)
    node.store.set_ref(ref, ref.seal(key), key.public)


def damage(node: Node, artifact: Artifact, *indices: int) -> None:
    """Lose one chunk and truncate another, as a bad disk does."""
    leaves = artifact.manifest.check_leaves(artifact.leaves).leaves
    lost, cut = (node.home.store_dir / "chunks" / leaves[i].digest.hex[:2] / leaves[i].digest.hex for i in indices)
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])


def client(node: Node, other: Node) -> PeerClient:
    return PeerClient(other.as_peer(), NodeIdentity(node.keys.peer), node.settings, Deadline.after(20))


async def test_only_signatures_that_somebody_trusts_are_kept(provider: Node, getter: Node) -> None:
    provider.keep(dataclasses.replace(ARTIFACT, envelope=crowded(ARTIFACT.envelope)))
    getter.keep(dataclasses.replace(OTHER, envelope=crowded(OTHER.envelope)))
    async with provider.serving():
        await getter.pull(provider, ARTIFACT.id)
        await getter.push(provider, OTHER.id)
    assert getter.store.artifact(ARTIFACT.id).envelope == ARTIFACT.envelope
    assert provider.store.artifact(OTHER.id).envelope == OTHER.envelope


async def test_a_heap_of_signatures_keeps_no_trusted_one_out_of_a_stored_artifact(
    provider: Node, getter: Node
) -> None:
    for node in (provider, getter):
        node.trust.add("second", SECOND.public)
        node.keep(dataclasses.replace(ARTIFACT, envelope=crowded(ARTIFACT.envelope)))
    later = dataclasses.replace(ARTIFACT, envelope=crowded(ARTIFACT.manifest.seal(SECOND)))
    faults = Faults(envelope=lambda _: later.envelope.encode())
    async with provider.serving(partial(FaultyServer, faults=faults)):
        await getter.pull(provider, ARTIFACT.id)
        async with client(getter, provider) as asking:
            await asking.hello()
            assert (await asking.offer(later.envelope)).complete
    both = {SIGNER.public, SECOND.public}
    assert set(getter.store.artifact(ARTIFACT.id).envelope.signers(both)) == both
    assert set(provider.store.artifact(ARTIFACT.id).envelope.signers(both)) == both


async def test_a_peer_does_not_move_the_name_of_another_trusted_signer(provider: Node, getter: Node) -> None:
    for node in (provider, getter):
        node.trust.add("second", SECOND.public)
        node.keep(ARTIFACT)
    provider.keep(OTHER)
    name_it(provider, "team/doc", OTHER, 1)
    name_it(getter, "team/doc", ARTIFACT, 50, SECOND)
    async with provider.serving():
        with pytest.raises(TrustError) as pushed:
            await getter.push(provider, ARTIFACT.id)
        with pytest.raises(TrustError) as pulled:
            await getter.pull(provider, "team/doc")
        dry = await getter.pull(provider, "team/doc", dry_run=True)
    assert (pushed.value.code, pulled.value.code) == ("trust.ref_owner", "trust.ref_owner")
    assert [v.code for v in dry.verdicts if not v.allowed] == ["trust.ref_owner"]
    assert provider.store.resolve("team/doc") == OTHER.id
    assert getter.store.resolve("team/doc") == ARTIFACT.id
    assert [stored.artifact for stored in getter.store.artifacts()] == [ARTIFACT.id]


async def test_a_name_that_was_removed_can_be_pulled_again(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)
    name_it(provider, "team/doc", ARTIFACT, 3)
    async with provider.serving():
        await getter.pull(provider, "team/doc")
        getter.store.remove_ref("team/doc")
        await getter.pull(provider, "team/doc")
    assert getter.store.resolve("team/doc") == ARTIFACT.id


async def test_a_signer_that_loses_trust_during_a_pull_vouches_for_nothing(provider: Node, getter: Node) -> None:
    provider.keep(ARTIFACT)

    def lose(stage: str, done: int, total: int, unit: str) -> None:
        with contextlib.suppress(NotFoundError):  # each stream reports
            getter.trust.remove("signer" if done else "nobody")

    async with provider.serving():
        with pytest.raises(TrustError) as caught:
            await getter.pull(provider, ARTIFACT.id, progress=lose)
    assert caught.value.code == "trust.untrusted_signer"
    assert getter.store.artifacts() == []
    assert getter.store.fsck().clean


async def test_a_signer_that_loses_trust_during_a_push_vouches_for_nothing(provider: Node, getter: Node) -> None:
    getter.keep(ARTIFACT)
    async with provider.serving(), client(getter, provider) as asking:
        await asking.hello()
        await getter.offer(asking, ARTIFACT)
        provider.trust.remove("signer")
        with pytest.raises(TrustError) as caught:
            await asking.commit(ARTIFACT.id, Commit())
    assert caught.value.code == "trust.untrusted_signer"
    assert provider.store.artifacts() == []


@pytest.mark.parametrize("way", ["pull", "push"])
async def test_a_transfer_heals_what_a_bad_disk_took(provider: Node, getter: Node, way: str) -> None:
    for node in (provider, getter):
        node.keep(ARTIFACT)
    sick = getter if way == "pull" else provider
    damage(sick, ARTIFACT, 1, 4)
    async with provider.serving():
        move = getter.pull if way == "pull" else getter.push
        report = await move(provider, ARTIFACT.id)
    assert report.chunks_moved == 2
    assert sick.store.fsck().clean


async def test_a_pull_replaces_a_damaged_description(provider: Node, getter: Node) -> None:
    for node in (provider, getter):
        node.keep(ARTIFACT)
    folder = getter.home.store_dir / "artifacts" / ARTIFACT.id.hex
    (folder / "leaves").write_bytes(b"")
    async with provider.serving():
        report = await getter.pull(provider, ARTIFACT.id)
    assert report.chunks_moved == 0
    assert getter.store.artifact(ARTIFACT.id).leaves().encode() == ARTIFACT.leaves
    assert getter.store.fsck().clean
