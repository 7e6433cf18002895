"""What a pull of a part moves: of an artifact's bytes, everything on the wire counted, and of its chunks.

    python -m benchmarks.partial [--json] [--mib 256] [--blocks 32]

Two nodes on loopback, a proxy between them that counts every byte of every connection in both directions: handshakes,
requests, description, chunks. One artifact has the shape of a model of 8 billion parameters, all of whose layers see
everything: a quarter of its tokens is pulled, then the rest. The other has Gemma 3 270M's: a graft at block 16 is
pulled, and each chunk that came is compared with what its layers can see from there. Contents are random bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks import synthetic
from benchmarks.pair import LIMITS, open_node
from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.peer.server import PeerServer
from kvsync.store import Store
from kvsync.sync import PullReport, pull
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.layout import ChunkSpan, Layout
from kvsync_protocol.limits import KiB, MiB

SHARE_BAR: Final = 0.26
GRAFT_BLOCKS: Final = 16


class Counter:
    """A TCP proxy to one address that counts what passes, both directions together."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._tasks: set[asyncio.Task[None]] = set()
        self.bytes = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """The address to connect to instead."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        try:
            yield f"{host}:{port}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = await asyncio.open_connection(*self._target)
        for source, sink in ((reader, onward[1]), (onward[0], writer)):
            task = asyncio.create_task(self._carry(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(256 * KiB):
                self.bytes += len(data)
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass  # the other end was closed first
        finally:
            sink.close()


class Getter:
    """An empty node behind a counting proxy."""

    def __init__(self, home: Home, keys: NodeKeys, store: Store, provider: Peer, wire: Counter) -> None:
        self._home, self._keys, self._provider, self._wire = home, keys, provider, wire
        self.store = store

    async def pull(self, artifact: ArtifactId, blocks: int | None) -> tuple[PullReport, int]:
        """The report, and the bytes that passed meanwhile."""
        before = self._wire.bytes
        report = await pull(
            self.store,
            TrustList(self._home, self._keys.signer.public),
            self._provider,
            str(artifact),
            keys=self._keys,
            settings=Settings(encoding="identity"),
            fingerprints=None,
            blocks=blocks,
        )
        return report, self._wire.bytes - before


@asynccontextmanager
async def pair(root: Path, layout: Layout) -> AsyncIterator[tuple[ArtifactId, Getter]]:
    """A provider with an artifact of random bytes, and a getter."""
    home, keys = open_node(root / "provider")
    other, others = open_node(root / "getter")
    PeerBook(home).add(Peer("getter", others.peer.public, (), ("get",)))
    TrustList(other, others.signer.public).add("provider", keys.signer.public)
    with Store.open(home.store_dir, LIMITS) as store, Store.open(other.store_dir, LIMITS) as empty:
        artifact = synthetic.deposit_as(store, keys.signer, layout).artifact
        server = PeerServer(store, keys, home, TrustList(home, keys.signer.public), Settings())
        host, port = await server.start()
        counter = Counter(host, port)
        try:
            async with counter.running() as address:
                peer = Peer("provider", keys.peer.public, (address,))
                yield artifact, Getter(other, others, empty, peer, counter)
        finally:
            await server.stop()
    shutil.rmtree(root)


async def quarter(root: Path, mib: int) -> dict[str, Any]:
    """A quarter of an artifact, then the rest of it."""
    layout = synthetic.layout_of(mib)
    async with pair(root, layout) as (artifact, getter):
        part, wire = await getter.pull(artifact, layout.blocks // 4)
        rest, later = await getter.pull(artifact, None)
        sound = getter.store.fsck().clean and getter.store.artifact(artifact).extent is None
    return {
        "bytes": layout.total_bytes,
        "blocks": layout.blocks,
        "position": part.position,
        "part": {"chunks": part.chunks_moved, "bytes": part.bytes_moved, "wire": wire},
        "rest": {"chunks": rest.chunks_moved, "bytes": rest.bytes_moved, "wire": later},
        "share": wire / layout.total_bytes,
        "both": (wire + later) / layout.total_bytes,
        "sound": sound,
    }


async def window(root: Path, blocks: int) -> dict[str, Any]:
    """A graft at block 16 of a model with sliding layers."""
    layout = synthetic.windowed(blocks)
    async with pair(root, layout) as (artifact, getter):
        report, wire = await getter.pull(artifact, GRAFT_BLOCKS)
        leaves = getter.store.artifact(artifact).leaves().leaves
        came = [span for span in layout.chunks() if getter.store.has_chunk(leaves[span.index].digest)]
    position = GRAFT_BLOCKS * layout.block_tokens
    return {
        "bytes": layout.total_bytes,
        "blocks": layout.blocks,
        "position": report.position,
        "chunks": len(came),
        "chunks_moved": report.chunks_moved,
        "by_group": {group.name: sorted({s.block for s in came if s.group == group.name}) for group in layout.groups},
        "outside": [span.index for span in came if _is_outside(layout, span, position)],
        "wire": wire,
        "share": wire / layout.total_bytes,
    }


def _is_outside(layout: Layout, span: ChunkSpan, position: int) -> bool:
    """Whether no token of a chunk is seen from `position` on: behind it, or before its group's window."""
    if span.block >= layout.blocks:
        return True  # logits, which only the artifact's end has
    start, stop = layout.block_range(span.block)
    width = getattr(layout.group(span.group), "window", None)
    return start >= position or (width is not None and stop <= position - (width - 1))


def show(result: dict[str, Any]) -> None:
    part, graft = result["quarter"], result["window"]
    print(f"{part['bytes'] / MiB:.0f} MiB in {part['blocks']} blocks, pulled up to token {part['position']}")
    print(f"  on the wire {part['part']['wire']} bytes, {100 * part['share']:.2f} % of the artifact")
    print(f"  with the rest of it {100 * part['both']:.2f} %\n")
    print(f"Gemma 3 270M's shape, {graft['bytes'] / MiB:.0f} MiB in {graft['blocks']} blocks, graft at block 16")
    for name, blocks in graft["by_group"].items():
        print(f"  {name:8} {len(blocks)} blocks, {blocks[0]} to {blocks[-1]}")
    print(f"  chunks no layer can see from there: {len(graft['outside'])}; {100 * graft['share']:.2f} % on the wire")
    print(f"\nheld: {result['held']}")


async def measure(root: Path, mib: int, blocks: int) -> dict[str, Any]:
    return {
        "data": "synthetic: random bytes under a real geometry",
        "quarter": await quarter(root / "quarter", mib),
        "window": await window(root / "window", blocks),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--blocks", type=int, default=32, help="of the artifact with sliding layers, more than 16")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kvsync-partial-", dir=options.directory))
    try:
        result = asyncio.run(measure(root, options.mib, options.blocks))
    finally:
        shutil.rmtree(root)
    part, graft = result["quarter"], result["window"]
    result["held"] = {
        f"a quarter moves <= {SHARE_BAR:.0%}": part["share"] <= SHARE_BAR and part["sound"],
        "no chunk outside the window": not graft["outside"] and graft["chunks"] == graft["chunks_moved"],
    }
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if all(result["held"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
