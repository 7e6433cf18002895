"""A provider and a getter as processes of their own, to be killed: python -m tests.sync.process serve|pull …"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from functools import partial
from pathlib import Path

from kvsync.keys import Peer
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status
from kvsync_protocol.signing import PublicKey
from tests.sync.faulty import Faults, FaultyServer, FaultySession
from tests.sync.nodes import Node


def slow_and_logged(log: int) -> Faults:
    """Serves honestly, a little slowly, and notes each chunk before it goes out."""

    def send(session: FaultySession, request: BulkRequest, data: memoryview) -> None:
        os.write(log, f"{request.index}\n".encode())
        time.sleep(0.01)
        session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(data)).encode(), data)

    return Faults(chunk=send)


async def serve(root: Path, name: str, log: Path, address: Path) -> None:
    node = Node(root, name)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    async with node.serving(partial(FaultyServer, faults=slow_and_logged(descriptor))):
        address.with_suffix(".new").write_text(node.address)
        address.with_suffix(".new").rename(address)
        await asyncio.Event().wait()


async def get(root: Path, name: str, wanted: str, places: list[str]) -> None:
    """From each of `places`, which are keys and addresses in turn."""
    node = Node(root, name)
    pairs = zip(places[::2], places[1::2], strict=True)
    peers = [Peer(f"provider{n}", PublicKey.parse(key), (address,)) for n, (key, address) in enumerate(pairs)]
    await node.pull(node, wanted, peer=peers)
    node.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", root, name, log, address]:
            asyncio.run(serve(Path(root), name, Path(log), Path(address)))
        case ["pull", root, name, wanted, *places]:
            asyncio.run(get(Path(root), name, wanted, places))
        case other:
            raise SystemExit(f"unknown: {other}")
