"""What a lookup takes over the wire: `benchmarks.registry`, through TLS 1.3 with pinned keys and a registry's server.

    python -m benchmarks.registry_http [--json] [--artifacts 100000] [--undisturbed]

One server process over SQLite, one process with eight clients that keep their connections and ask with 64 keys each,
--rate times a second. The time is the client's own: from the query's keys to the parsed answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.registry import (
    ASKED,
    BLOCKS,
    CLIENTS,
    P99_BAR_MS,
    Everybody,
    block,
    fill,
    host,
    keys_of,
    open_store,
    undisturbed,
)
from kvsync.config import Settings
from kvsync.keys import Peer
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity, peer_key
from kvsync.peer.registry_client import RegistryClient
from kvsync_protocol.routes import CONTROL_ALPN
from kvsync_registry.app import RegistryServer
from kvsync_registry.service import Registry

SERVER: Final = 10**8


async def serve(where: str) -> None:
    """The server process: says its address, serves until stdin ends."""
    identity = NodeIdentity(host(SERVER))
    pins = [host(SERVER + 1 + number).public for number in range(CLIENTS)]
    store, members = open_store(where), Everybody()
    server = RegistryServer(
        Registry(store, members),
        members,
        context=lambda: identity.server_context(pins, CONTROL_ALPN),
        identify=peer_key,
    )
    bound, port = await server.start()
    print(f"{bound}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    store.close()


async def client(address: str, number: int, known: int, seconds: float, rate: float) -> list[float]:
    """Milliseconds of every lookup after the first second."""
    rng, took = random.Random(number), []
    server = Peer("registry", host(SERVER).public, (address,))
    mine = NodeIdentity(host(SERVER + 1 + number))
    async with RegistryClient(server, mine, Settings(), Deadline.after(seconds + 60)) as asking:
        await asking.hello()
        warm = time.perf_counter() + 1.0
        while time.perf_counter() < warm + seconds:
            have = 0 if rng.random() < 0.125 else rng.randint(1, BLOCKS)
            keys = [*keys_of(rng.randrange(known))[:have], *(block(f"{number}.{rng.random()}") for _ in range(ASKED))]
            await asyncio.sleep(rng.uniform(0.5, 1.5) / rate)
            began = time.perf_counter()
            found = await asking.lookup(keys[:ASKED])
            ended = time.perf_counter()
            assert found.shared == have
            if began >= warm:
                took.append(1000 * (ended - began))
    return took


async def ask(address: str, known: int, seconds: float, rate: float) -> list[float]:
    found = await asyncio.gather(*(client(address, n, known, seconds, rate) for n in range(CLIENTS)))
    return sorted(value for one in found for value in one)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--artifacts", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=25.0, help="lookups a second of each client")
    parser.add_argument("--undisturbed", action="store_true", help="time at realtime priority (root)")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    with tempfile.TemporaryDirectory(prefix="kvsync-registry-", dir=options.directory) as folder:
        where = f"{folder}/registry.sqlite"
        store = open_store(where)
        fill(store, 0, options.artifacts)
        store.close()
        command = [sys.executable, "-m", "benchmarks.registry_http", "--serve", where]
        with undisturbed(None, options.undisturbed):
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            took = asyncio.run(ask(address, options.artifacts, options.seconds, options.rate))
        process.communicate("")
    result = {
        "artifacts": options.artifacts,
        "lookups_per_s": len(took) / options.seconds,
        "p50_ms": took[len(took) // 2],
        "p99_ms": took[len(took) * 99 // 100],
        "most_ms": took[-1],
    }
    if options.json:
        print(json.dumps(result))
    else:
        print("  ".join(f"{name} {value:,.2f}" for name, value in result.items()))
    return 0 if result["p99_ms"] < P99_BAR_MS else 1


if __name__ == "__main__":
    sys.exit(main())
