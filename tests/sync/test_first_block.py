"""The first block comes first: nothing else is asked for while its chunks are on the line."""

from __future__ import annotations

import time
from functools import partial

import pytest

from kvsync_protocol.bulk import BulkRequest
from tests.sync.faulty import Faults, FaultyServer, FaultySession
from tests.sync.lies import ARTIFACT, plain
from tests.sync.nodes import Node

LEADING = ARTIFACT.manifest.layout.first_block_leaves


@pytest.mark.parametrize("encoding", ["identity", "planes"])
async def test_other_streams_wait_for_the_first_block(provider: Node, getter: Node, encoding: str) -> None:
    provider.keep(ARTIFACT)
    asked_meanwhile: list[int] = []
    faults = Faults(leaves={0})

    def late(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        time.sleep(0.5)
        asked_meanwhile.extend(faults.chunks)
        plain(session, bytes(data))

    faults.chunk = late
    async with provider.serving(partial(FaultyServer, faults=faults)):
        report = await getter.pull(provider, ARTIFACT.id, settings={"streams": 4, "encoding": encoding})
    assert set(asked_meanwhile) <= set(range(LEADING))
    assert sorted(faults.chunks) == list(range(len(ARTIFACT.chunks)))
    assert report.streams >= 4
    assert getter.store.fsck().clean
