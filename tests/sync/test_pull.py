"""Pulls between two nodes: what arrives, what is asked first, what is refused."""

from __future__ import annotations

from collections.abc import Callable

from kvsync_protocol.digest import sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.conftest import SIGNER, Artifact
from tests.sync.nodes import Node

Make = Callable[..., Artifact]


def name_it(node: Node, name: str, artifact: Artifact, sequence: int = 1, key: SigningKey = SIGNER) -> Envelope:
    ref = Ref(name, artifact.id, sequence)
    envelope = ref.seal(key)
    node.store.set_ref(ref, envelope, key.public)
    return envelope


async def test_a_pulled_artifact_has_every_byte_of_the_original(
    provider: Node, getter: Node, make_artifact: Make
) -> None:
    artifact = make_artifact(tokens=100, heads=8, dim=64)
    provider.keep(artifact)
    async with provider.serving():
        report = await getter.pull(provider, artifact.id)
    stored = getter.store.artifact(artifact.id)
    assert stored.leaves().encode() == artifact.leaves
    assert stored.tokens() == artifact.token_ids
    for leaf, chunk in zip(stored.leaves().leaves, artifact.chunks, strict=True):
        assert sha256(chunk) == leaf.digest
        assert getter.store.has_chunk(leaf.digest)
    assert getter.store.fsck().sound
    assert report.bytes_moved == report.bytes_wire == sum(map(len, artifact.chunks))
    assert (report.chunks_moved, report.bytes_here, report.resent) == (len(artifact.chunks), 0, 0)
