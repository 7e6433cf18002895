"""The same thing asked for several times at the same moment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync_protocol.errors import CodedError
from kvsync_protocol.messages import Commit
from tests.conftest import build_artifact
from tests.sync.nodes import Node


async def test_an_offer_that_is_committed_four_times_at_once_is_published_once(provider: Node, getter: Node) -> None:
    async with provider.serving(), AsyncExitStack() as stack:
        identity, deadline = NodeIdentity(getter.keys.peer), Deadline.after(60)
        clients = [PeerClient(provider.as_peer(), identity, getter.settings, deadline) for _ in range(4)]
        for client in clients:
            await stack.enter_async_context(client)
            await client.hello()
        for seed in range(8):
            artifact = build_artifact(seed, 40)
            getter.keep(artifact)
            await getter.offer(clients[0], artifact)
            answers = await asyncio.gather(
                *(client.commit(artifact.id, Commit()) for client in clients), return_exceptions=True
            )
            codes = {answer.code for answer in answers if isinstance(answer, CodedError)}
            assert codes <= {"offer.unknown"}
            assert provider.store.whole(artifact.id) is not None
    assert provider.store.fsck().clean


async def test_pushes_of_one_artifact_at_once_all_succeed(provider: Node, getter: Node) -> None:
    async with provider.serving():
        for seed in range(6):
            artifact = build_artifact(seed, 40)
            getter.keep(artifact)
            await asyncio.gather(*(getter.push(provider, artifact.id) for _ in range(4)))
            assert provider.store.whole(artifact.id) is not None
    assert provider.store.fsck().clean


async def test_an_offer_made_twice_goes_on_where_it_was(provider: Node, getter: Node) -> None:
    artifact = build_artifact(3, 40)
    identity = NodeIdentity(getter.keys.peer)
    async with (
        provider.serving() as server,
        PeerClient(provider.as_peer(), identity, getter.settings, Deadline.after(20)) as first,
        PeerClient(provider.as_peer(), identity, getter.settings, Deadline.after(20)) as second,
    ):
        for client in (first, second):
            await client.hello()
        await first.offer(artifact.envelope)
        await first.offer_leaves(artifact.id, artifact.leaves)
        await first.offer_tokens(artifact.id, artifact.tokens)
        await second.offer(artifact.envelope)
        assert list((await first.missing(artifact.manifest)).indices()) == list(range(len(artifact.chunks)))
        assert server.offers == 1
