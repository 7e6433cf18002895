"""fsck with a peer: only bad and missing chunks are fetched, and what the peer sends is checked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from kvsync.errors import UnavailableError
from kvsync.store import FsckReport
from kvsync.sync.repair import repair
from kvsync_protocol.bulk import REPLY_BYTES, BulkReply, BulkRequest, Encoding, Status
from kvsync_protocol.errors import TrustError
from tests.conftest import Artifact
from tests.sync.faulty import Faults, FaultyServer, FaultySession
from tests.sync.nodes import Node

Make = Callable[..., Artifact]


def chunk_path(node: Node, artifact: Artifact, index: int) -> Path:
    name = artifact.manifest.check_leaves(artifact.leaves).leaves[index].digest.hex
    return node.home.store_dir / "chunks" / name[:2] / name


def spoil(node: Node, artifact: Artifact, *indices: int) -> None:
    for index in indices:
        path = chunk_path(node, artifact, index)
        path.chmod(0o600)
        path.write_bytes(bytes(path.stat().st_size))


async def mend(node: Node, provider: Node) -> FsckReport:
    return await repair(node.store, provider.as_peer(), keys=node.keys, settings=node.settings)


async def test_only_bad_and_missing_chunks_are_fetched(provider: Node, getter: Node, make_artifact: Make) -> None:
    artifact = make_artifact(tokens=100)
    provider.keep(artifact)
    getter.keep(artifact)
    spoil(getter, artifact, 1, 4)
    chunk_path(getter, artifact, 2).unlink()
    faults = Faults()
    async with provider.serving(partial(FaultyServer, faults=faults)):
        report = await mend(getter, provider)
    assert report.sound
    assert not report.clean
    assert sorted(faults.chunks) == [1, 2, 4]
    assert getter.store.fsck().clean
    for index, chunk in enumerate(artifact.chunks):
        assert chunk_path(getter, artifact, index).read_bytes() == chunk


def wrong_bytes(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    reply = BulkReply(Status.OK, Encoding.IDENTITY, len(data)).encode()
    session.stream.write(reply, memoryview(bytes([data[0] ^ 1]) + bytes(data[1:])))


def too_short(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(data) - 1).encode(), data[:-1])


def garbage(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(bytes(REPLY_BYTES))


def goes_away(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(data)).encode(), data[: len(data) // 2])
    session.stream.abort()


def has_not(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
    session.stream.write(BulkReply(Status.NOT_FOUND).encode())


@pytest.mark.parametrize("lie", [wrong_bytes, too_short, garbage, goes_away, has_not])
async def test_a_chunk_the_peer_lies_about_stays_bad_and_the_others_are_repaired(
    provider: Node, getter: Node, make_artifact: Make, lie: Callable[..., None]
) -> None:
    artifact = make_artifact(tokens=100)
    provider.keep(artifact)
    getter.keep(artifact)
    spoil(getter, artifact, 0, 2, 3)
    async with provider.serving(partial(FaultyServer, faults=Faults(chunk=lie, leaves={2}))):
        report = await mend(getter, provider)
    assert not report.sound
    assert sorted(finding.repaired for finding in report.findings) == [False, True, True]
    assert not chunk_path(getter, artifact, 2).exists()
    for index in (0, 3):
        assert chunk_path(getter, artifact, index).read_bytes() == artifact.chunks[index]


async def test_what_one_peer_lacks_does_not_stop_the_rest(provider: Node, getter: Node, make_artifact: Make) -> None:
    here, there = make_artifact(1), make_artifact(2)
    provider.keep(there)
    getter.keep(here)
    getter.keep(there)
    spoil(getter, here, 0)
    spoil(getter, there, 0)
    async with provider.serving():
        report = await mend(getter, provider)
    assert sorted(finding.repaired for finding in report.findings) == [False, True]
    assert chunk_path(getter, there, 0).read_bytes() == there.chunks[0]


async def test_nothing_is_checked_when_the_peer_cannot_be_asked(
    provider: Node, getter: Node, make_node: Callable[..., Node], make_artifact: Make
) -> None:
    artifact = make_artifact()
    getter.keep(artifact)
    spoil(getter, artifact, 0)
    stranger = make_node("stranger")
    async with provider.serving():
        with pytest.raises(TrustError) as unknown:
            await mend(stranger, provider)
    assert unknown.value.code == "peer.refused"
    with pytest.raises(UnavailableError) as refused:
        await mend(getter, provider)
    assert refused.value.code == "peer.unreachable"
    assert chunk_path(getter, artifact, 0).exists()
