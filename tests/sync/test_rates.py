"""Limits and pauses take effect while transfers run, in both directions."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from functools import partial

import pytest

from kvsync.config import MIN_RATE
from kvsync.errors import UnavailableError
from kvsync.keys import Peer
from kvsync.peer.bucket import LEAST_BURST
from tests.conftest import build_artifact
from tests.sync.faulty import Faults, FaultyServer
from tests.sync.nodes import Node

LARGE = build_artifact(tokens=1000, heads=8, dim=64)
RATE = 4 * 1024 * 1024


def slowest_s() -> float:
    """What the artifact takes at least at RATE."""
    return (sum(map(len, LARGE.chunks)) - LEAST_BURST) / RATE


@pytest.mark.parametrize("limited", ["getter", "provider"])
@pytest.mark.parametrize("by", ["node", "peer"])
async def test_a_limit_holds_for_what_comes_in_and_for_what_goes_out(
    provider: Node, getter: Node, limited: str, by: str
) -> None:
    provider.keep(LARGE)
    node, other = (getter, provider) if limited == "getter" else (provider, getter)
    if by == "node":
        dataclasses.replace(node.settings, rate_bytes_per_s=RATE).save(node.home)
    else:
        if limited == "getter":
            node.book.add(other.as_peer("127.0.0.1:1"))
        node.book.limit(other.name, rate=RATE)
    async with provider.serving():
        began = time.monotonic()
        report = await getter.pull(provider, LARGE.id)
        assert time.monotonic() - began >= slowest_s()
    assert report.bytes_moved == sum(map(len, LARGE.chunks))
    assert getter.store.fsck().clean


async def test_a_limit_is_lifted_while_bytes_move(provider: Node, getter: Node) -> None:
    provider.keep(LARGE)
    getter.book.add(provider.as_peer("127.0.0.1:1"))
    getter.book.limit("provider", rate=MIN_RATE)
    async with provider.serving():
        pulling = asyncio.create_task(getter.pull(provider, LARGE.id))
        await asyncio.sleep(1)
        assert not pulling.done()
        getter.book.limit("provider", rate=0)
        await asyncio.wait_for(pulling, 10)  # with the limit it would take minutes
    assert getter.store.fsck().clean


@pytest.mark.parametrize("clear", [False, True])
@pytest.mark.parametrize("way", ["pull", "push"])
async def test_the_least_rate_shared_by_streams_is_no_stall(
    provider: Node, getter: Node, way: str, clear: bool
) -> None:
    """Each has its turn well within the other side's patience: what is broken off comes again, and again."""
    artifact = build_artifact(tokens=16, heads=16, dim=256)
    getter.meet(provider, "push")
    dataclasses.replace(provider.settings, rate_bytes_per_s=MIN_RATE).save(provider.home)
    for node in (provider, getter):
        networks = ("127.0.0.0/8",) if clear else ()
        node.settings = dataclasses.replace(node.settings, unencrypted_bulk_networks=networks)
    provider.keep(artifact)
    server = provider if way == "pull" else getter
    async with server.serving():
        settings = {"stall_timeout_s": 2}
        if way == "pull":
            report = await getter.pull(provider, artifact.id, settings=settings)
        else:
            report = await provider.push(getter, artifact.id, settings=settings)
    assert report.bytes_unencrypted == (report.bytes_wire if clear else 0)
    assert report.bytes_moved == sum(map(len, artifact.chunks))


@pytest.mark.parametrize("whole_node", [True, False])
async def test_a_paused_pull_goes_on_after_its_deadline_would_have_been(
    provider: Node, getter: Node, make_node: Callable[..., Node], whole_node: bool
) -> None:
    provider.keep(LARGE)
    getter.book.add(provider.as_peer("127.0.0.1:1"))

    def pause(paused: bool) -> None:
        if not whole_node:
            getter.book.limit("provider", paused=paused)
        elif paused:
            getter.home.paused_file.touch()
        else:
            getter.home.paused_file.unlink()

    faults = Faults()
    async with provider.serving(partial(FaultyServer, faults=faults)):
        pause(True)
        pulling = asyncio.create_task(getter.pull(provider, LARGE.id, settings={"transfer_deadline_s": 3}))
        await asyncio.sleep(5)
        assert not pulling.done()
        assert faults.chunks == []
        pause(False)
        report = await asyncio.wait_for(pulling, 10)
    assert report.chunks_moved == len(LARGE.chunks)


async def test_a_paused_node_serves_no_chunks(provider: Node, getter: Node) -> None:
    provider.keep(LARGE)
    provider.home.paused_file.touch()
    async with provider.serving():
        with pytest.raises(UnavailableError) as caught:
            await getter.pull(provider, LARGE.id)
        assert caught.value.code == "peer.busy"
        provider.home.paused_file.unlink()
        await asyncio.sleep(0.3)
        await getter.pull(provider, LARGE.id)
    assert getter.store.fsck().clean


def test_a_peer_that_is_added_again_keeps_its_limits(getter: Node, provider: Node) -> None:
    getter.book.add(provider.as_peer("127.0.0.1:1"))
    getter.book.limit("provider", rate=RATE, paused=True)
    getter.book.add(Peer("provider", provider.keys.peer.public, ("127.0.0.1:2",), ("push",)))
    found = getter.book.get("provider")
    assert (found.rate, found.paused, found.roles) == (RATE, True, ("push",))
