"""SIGKILL with several providers: of one of them, and of the getter."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import SIGNER
from tests.sync.nodes import Node
from tests.sync.test_kill import ARTIFACT, ProviderProcess

KILLS = 3
PROVIDERS = 3


@pytest.fixture
def processes(make_node: Callable[..., Node], tmp_path: Path) -> Iterator[list[ProviderProcess]]:
    getter = make_node("getter")
    getter.trust.add("signer", SIGNER.public)
    found = []
    for number in range(PROVIDERS):
        node = make_node(f"provider{number}")
        node.meet(getter, "get")
        node.keep(ARTIFACT)
        (tmp_path / f"log{number}").mkdir()
        found.append(ProviderProcess(node, tmp_path / f"log{number}"))
        found[-1].getter = getter  # type: ignore[attr-defined]
    yield found
    for process in found:
        process.kill()


def served(processes: list[ProviderProcess]) -> list[int]:
    return [index for process in processes for index in process.served]


async def test_a_killed_provider_costs_at_most_its_chunks_in_flight(processes: list[ProviderProcess]) -> None:
    getter: Node = processes[0].getter  # type: ignore[attr-defined]
    for process in processes:
        await process.start()
    peers = [process.node.as_peer() for process in processes]
    pulling = asyncio.create_task(getter.pull(getter, ARTIFACT.id, peer=peers))
    await processes[1].more(2, pulling)
    processes[1].kill()
    report = await asyncio.wait_for(pulling, 30)
    assert report.chunks_moved == len(ARTIFACT.chunks)
    assert getter.store.fsck().clean
    streams = -(-getter.settings.streams // PROVIDERS)
    again = len(served(processes)) - len(set(served(processes)))
    assert again <= streams + PROVIDERS  # those in flight, and one of every provider asked for once more at the end
    chunks = {source.peer: source.chunks for source in report.sources}
    assert sum(chunks.values()) >= len(ARTIFACT.chunks)
    assert chunks["provider1"] <= len(processes[1].served)


async def test_a_killed_getter_loses_at_most_one_chunk_per_stream(processes: list[ProviderProcess]) -> None:
    getter: Node = processes[0].getter  # type: ignore[attr-defined]
    for process in processes:
        await process.start()
    places = [text for p in processes for text in (str(p.node.keys.peer.public), p.node.address)]
    root = str(getter.home.root.parent)
    command = [sys.executable, "-m", "tests.sync.process", "pull", root, getter.name, str(ARTIFACT.id), *places]
    rng = random.Random(5)
    for _ in range(KILLS):
        pulling = await asyncio.to_thread(subprocess.Popen, command)
        await processes[0].more(rng.randint(1, 5))
        await asyncio.sleep(rng.random() * 0.02)
        pulling.kill()
        pulling.wait()
        assert getter.store.artifacts() == []
        assert getter.store.fsck().clean
    await getter.pull(getter, ARTIFACT.id, peer=[process.node.as_peer() for process in processes])
    assert getter.store.fsck().clean
    assert set(served(processes)) == set(range(len(ARTIFACT.chunks)))
    streams = PROVIDERS * -(-getter.settings.streams // PROVIDERS)
    assert len(served(processes)) <= len(ARTIFACT.chunks) + KILLS * streams + PROVIDERS
