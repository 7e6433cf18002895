"""SIGKILL of either side in the middle: nothing wrong is visible, and a resume fetches almost nothing twice."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvsync_protocol.errors import CodedError
from tests.conftest import build_artifact
from tests.sync.nodes import Node

ARTIFACT = build_artifact(tokens=400, heads=2, dim=32)
KILLS = 3


class ProviderProcess:
    """Serves the provider's home from a process of its own; its log outlives every kill."""

    def __init__(self, node: Node, directory: Path) -> None:
        self.node = node
        self._log, self._address = directory / "served.log", directory / "address"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        self._address.unlink(missing_ok=True)
        command = [sys.executable, "-m", "tests.sync.process", "serve", str(self.node.home.root.parent)]
        self._process = await asyncio.to_thread(
            subprocess.Popen, [*command, self.node.name, str(self._log), str(self._address)]
        )
        await asyncio.to_thread(self._await_address, self._process)
        self.node.address = self._address.read_text()

    def _await_address(self, process: subprocess.Popen[bytes]) -> None:
        while not self._address.exists():
            assert process.poll() is None, "the provider ended by itself"
            time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def served(self) -> list[int]:
        """Indices of all chunks that it began to send, by any of its lives."""
        return [int(line) for line in self._log.read_text().split()] if self._log.exists() else []

    async def more(self, count: int, pulling: asyncio.Task[object] | None = None) -> None:
        """Until `count` chunks more were served, or the pull ended."""
        wanted = len(self.served) + count

        def wait() -> None:
            give_up = time.monotonic() + 30
            while len(self.served) < wanted and not (pulling and pulling.done()):
                assert time.monotonic() < give_up, "nothing is served"
                time.sleep(0.002)

        await asyncio.to_thread(wait)


@pytest.fixture
def process(provider: Node, getter: Node, tmp_path: Path) -> Iterator[ProviderProcess]:
    provider.keep(ARTIFACT)
    found = ProviderProcess(provider, tmp_path)
    yield found
    found.kill()


def check(getter: Node, process: ProviderProcess, kills: int) -> None:
    """Everything is here, and at most one chunk per stream and kill was served twice."""
    assert getter.store.fsck().clean
    assert getter.store.artifact(ARTIFACT.id).leaves().encode() == ARTIFACT.leaves
    assert set(process.served) == set(range(len(ARTIFACT.chunks)))
    assert len(process.served) <= len(ARTIFACT.chunks) + kills * getter.settings.streams


async def test_a_killed_getter_loses_at_most_the_chunks_in_flight(
    provider: Node, getter: Node, process: ProviderProcess
) -> None:
    await process.start()
    rng = random.Random(2)
    root, key = str(getter.home.root.parent), str(provider.keys.peer.public)
    command = [sys.executable, "-m", "tests.sync.process", "pull", root, getter.name, str(ARTIFACT.id)]
    for _ in range(KILLS):
        pulling = await asyncio.to_thread(subprocess.Popen, [*command, key, provider.address])
        await process.more(rng.randint(1, 9))
        await asyncio.sleep(rng.random() * 0.02)
        pulling.kill()
        pulling.wait()
        assert getter.store.artifacts() == []
        assert getter.store.fsck().clean
    report = await getter.pull(provider, ARTIFACT.id)
    assert report.bytes_here > 0
    check(getter, process, KILLS)


@pytest.mark.parametrize(("encoding", "ahead"), [("identity", 1), ("zstd", 2)])
async def test_a_killed_provider_ends_the_pull_and_a_new_one_goes_on(
    provider: Node, getter: Node, process: ProviderProcess, encoding: str, ahead: int
) -> None:
    rng = random.Random(3)
    for _ in range(KILLS):
        await process.start()
        pulling = asyncio.create_task(getter.pull(provider, ARTIFACT.id, settings={"encoding": encoding}))
        await process.more(rng.randint(2, 9), pulling)
        process.kill()
        with pytest.raises(CodedError) as caught:
            await asyncio.wait_for(pulling, 30)
        assert caught.value.code in ("peer.closed", "peer.unreachable")
        assert getter.store.artifacts() == []
        assert getter.store.fsck().clean
    await process.start()
    await getter.pull(provider, ARTIFACT.id)
    check(getter, process, KILLS * ahead)


async def test_a_cancelled_pull_ends_soon_and_keeps_what_it_has(
    provider: Node, getter: Node, process: ProviderProcess
) -> None:
    await process.start()
    pulling = asyncio.create_task(getter.pull(provider, ARTIFACT.id))
    await process.more(3, pulling)
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(pulling, 5)
    assert getter.store.artifacts() == []
    await getter.pull(provider, ARTIFACT.id)
    check(getter, process, 1)
