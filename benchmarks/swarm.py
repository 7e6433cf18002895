"""One origin and several getters that get the same artifact at once and serve each other.

    python benchmarks/swarm.py [--json] [--mib 256] [--getters 8] [--rate BYTES_PER_S] [--streams 3]

Every node is a process with a loopback address, a store in memory (/dev/shm) and keys of its own; all know each
other. Counted are the bytes that the origin's bulk lane hands to TLS. Compared is the time until the last getter has
published with that of as many pulls from the origin alone, one after the other. Afterwards every getter hashes all of
its store. With --rate every node's own limit, for each direction, is set: then links bound the swarm, not CPUs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Final

from benchmarks import synthetic
from benchmarks.pair import LIMITS, open_node
from kvsync.config import Home, Settings
from kvsync.keys import Peer, PeerBook, TrustList
from kvsync.peer.bulk_server import BulkLane, BulkSession
from kvsync.peer.server import PeerServer
from kvsync.peer.stream import Stream
from kvsync.store import Store
from kvsync.sync import pull
from kvsync_protocol.limits import MiB
from kvsync_protocol.signing import PublicKey

BYTES_BAR: Final = 1.5
"""Bytes leaving the origin, in artifacts."""


class CountingLane(BulkLane):
    """Counts what its sessions write."""

    sent = 0

    def session(self, key: PublicKey, stream: Stream) -> BulkSession:
        session, write = super().session(key, stream), stream.write

        def counted(*parts: bytes | memoryview) -> None:
            write(*parts)
            self.sent += sum(len(part) for part in parts)

        session.stream.write = counted  # type: ignore[method-assign]
        return session


class CountingServer(PeerServer):
    bulk_type = CountingLane


async def node(root: Path) -> None:
    """A node's process: serves, and does what the lines on stdin say, one answer each."""
    home, keys = open_node(root)
    settings, trust = Settings.load(home), TrustList(home, keys.signer.public)
    with Store.open(home.store_dir, LIMITS) as store:
        server = CountingServer(store, keys, home, trust, settings)
        host, port = await server.start()
        _say({"address": f"{host}:{port}"})
        while line := await asyncio.to_thread(sys.stdin.readline):
            match json.loads(line):
                case {"sent": _}:
                    _say({"sent": server.bulk.sent})  # type: ignore[attr-defined]
                case {"check": _}:
                    report = await asyncio.to_thread(store.fsck)
                    _say({"clean": report.clean, "artifacts": len(store.artifacts())})
                case {"pull": artifact, "from": places}:
                    peers = [Peer(name, PublicKey.parse(key), (address,)) for name, key, address in places]
                    began = time.monotonic()
                    done = await pull(store, trust, peers, artifact, keys=keys, settings=settings, fingerprints=None)
                    _say({"seconds": time.monotonic() - began, "report": done.as_dict()})
        await server.stop()


def _say(found: dict[str, object]) -> None:
    print(json.dumps(found), flush=True)


class NodeProcess:
    """One node, from outside."""

    def __init__(self, root: Path, name: str, host: str, rate: int, streams: int) -> None:
        self.name, self.root = name, root / name
        self.home, keys = open_node(self.root)
        self.key, self.signer = keys.peer.public, keys.signer
        Settings(listen_host=host, rate_bytes_per_s=rate, streams=streams).save(self.home)
        self.address = ""
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "benchmarks.swarm", "--node", str(self.root)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.address = str(self.answer()["address"])

    def ask(self, **request: object) -> None:
        print(json.dumps(request), file=self._pipe(0), flush=True)

    def answer(self) -> dict[str, Any]:
        return dict(json.loads(self._pipe(1).readline()))

    def stop(self) -> None:
        if self._process is not None:
            self._process.communicate(timeout=60)
            self._process = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def place(self) -> list[str]:
        return [self.name, str(self.key), self.address]

    def empty(self) -> None:
        shutil.rmtree(Home(self.root).store_dir, ignore_errors=True)

    def _pipe(self, number: int) -> IO[str]:
        process = self._process
        pipe = None if process is None else (process.stdin, process.stdout)[number]
        if pipe is None:
            raise RuntimeError(f"{self.name} is not running")
        return pipe


def measure(root: Path, mib: int, getters: int, rate: int, streams: int) -> dict[str, Any]:
    nodes = [NodeProcess(root, f"node{n}", f"127.0.0.{2 + n}", rate, streams) for n in range(getters + 1)]
    origin, others = nodes[0], nodes[1:]
    with Store.open(origin.home.store_dir, LIMITS) as store:
        stored = synthetic.deposit(store, origin.signer, mib)
    for each in nodes:
        for other in nodes:
            if other is not each:
                PeerBook(each.home).add(Peer(other.name, other.key, (), ("get",)))
        TrustList(each.home, each.signer.public).add("origin", origin.signer.public)
    wanted, size = str(stored.artifact), stored.bytes
    try:
        one_by_one = sequential(origin, others, wanted)
        for each in others:
            each.empty()
        return {**at_once(nodes, wanted, size), "bytes": size, "sequential_s": one_by_one, "rate": rate}
    finally:
        for each in nodes:
            each.kill()


def sequential(origin: NodeProcess, getters: list[NodeProcess], wanted: str) -> list[float]:
    """Seconds of each pull from the origin alone, one after the other."""
    origin.start()
    found = []
    for each in getters:
        each.start()
        each.ask(pull=wanted, **{"from": [origin.place]})
        found.append(float(each.answer()["seconds"]))
        each.stop()
    origin.stop()
    return found


def at_once(nodes: list[NodeProcess], wanted: str, size: int) -> dict[str, Any]:
    origin, getters = nodes[0], nodes[1:]
    for each in nodes:
        each.start()
    began = time.monotonic()
    for each in getters:
        each.ask(pull=wanted, **{"from": [other.place for other in nodes if other is not each]})
    done = [each.answer() for each in getters]
    last = time.monotonic() - began
    origin.ask(sent=True)
    sent = int(origin.answer()["sent"])
    for each in getters:
        each.ask(check=True)
    checks = [each.answer() for each in getters]
    for each in nodes:
        each.stop()
    sources = [source for each in done for source in each["report"]["sources"]]
    return {
        "getters": len(getters),
        "seconds": [round(float(each["seconds"]), 3) for each in done],
        "last_s": round(last, 3),
        "origin_sent": sent,
        "origin_ratio": round(sent / size, 3),
        "among_getters_bytes": sum(source["bytes"] for source in sources if source["peer"] != origin.name),
        "verified": all(check["clean"] and check["artifacts"] == 1 for check in checks),
        "chunks": done[0]["report"]["chunks"],
        "moved_twice_bytes": sum(each["report"]["bytes_wire"] - each["report"]["bytes_moved"] for each in done),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--getters", type=int, default=8)
    parser.add_argument("--rate", type=int, default=0, help="bytes per second of every node, each direction")
    parser.add_argument("--streams", type=int, default=Settings().streams)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    parser.add_argument("--node", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.node:
        asyncio.run(node(options.node))
        return 0
    root = Path(tempfile.mkdtemp(prefix="kvsync-swarm-", dir=options.directory))
    try:
        result = measure(root, options.mib, options.getters, options.rate, options.streams)
    finally:
        shutil.rmtree(root)
    total = sum(result["sequential_s"])
    result["sequential_s"] = [round(each, 3) for each in result["sequential_s"]]
    result["ratio_to_sequential"] = round(result["last_s"] / total, 3)
    held = {
        f"origin sends <= {BYTES_BAR} artifacts": result["origin_ratio"] <= BYTES_BAR,
        "verified": result["verified"],
    }
    result["held"] = held
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['getters']} getters, {result['bytes'] / MiB:.0f} MiB in {result['chunks']} chunks")
        print(f"the origin sent {result['origin_ratio']:.2f} artifacts (bar: {BYTES_BAR})")
        print(f"the last had it after {result['last_s']:.2f} s; one after the other {total:.2f} s", end="")
        print(f", {result['ratio_to_sequential']:.2f} of it\nheld: {held}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
