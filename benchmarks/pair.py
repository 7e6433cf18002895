"""A provider with an artifact and a getter, for benchmarks of transfers: two homes, and a process of its own for each
server and each transfer, as in real life.

    python -m benchmarks.pair serve|get|put …    what those processes run; prints JSON
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.pack.loading import LOADER
from kvsync.store import Store, StoredArtifact, StoreLimits
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.signing import SigningKey

LIMITS: Final = StoreLimits(free_floor_bytes=0)

Deposit = Callable[[Store, SigningKey], StoredArtifact]


def open_node(root: Path) -> tuple[Home, NodeKeys]:
    home = Home(root)
    home.create()
    return home, NodeKeys.create(home)


def peak_rss_mib() -> float:
    """VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


class Server:
    """A peer server in a process of its own."""

    def __init__(self, address: str, process: subprocess.Popen[str]) -> None:
        self.address = address
        self.peak_mib = 0.0
        """After its end."""
        self._process = psutil.Process(process.pid)

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)


class Pair:
    """A provider with an artifact, and a getter's home, below one directory.

    `hosts` are what provider and getter listen at; `near` and `far` go before each one's commands, such as
    `ip netns exec …`. `networks` are those with which the servers exchange chunks without encryption; a transfer's
    own settings say the same of its side. `compiled`: all processes have loaded the compiled codec, as those
    that have moved much.
    """

    def __init__(
        self,
        root: Path,
        deposit: Deposit,
        *,
        hosts: tuple[str, str] = ("127.0.0.1", "127.0.0.1"),
        near: Sequence[str] = (),
        far: Sequence[str] = (),
        networks: Sequence[str] = (),
        compiled: bool = False,
    ) -> None:
        self.provider, self.getter = root / "provider", root / "getter"
        self._hosts = hosts
        self._options = ("--compiled",) if compiled else ()
        self._networks = ",".join(networks)
        self._prefix = {self.provider: tuple(near), self.getter: tuple(far)}
        home, keys = open_node(self.provider)
        with Store.open(home.store_dir, LIMITS) as store:
            stored = deposit(store, keys.signer)
        self.artifact, self.bytes = stored.artifact.hex, stored.bytes
        other, other_keys = open_node(self.getter)
        PeerBook(home).add(Peer("getter", other_keys.peer.public, (), ("get",)))
        PeerBook(other).add(Peer("provider", keys.peer.public, (), ("push",)))
        TrustList(other, other_keys.signer.public).add("provider", keys.signer.public)

    @contextlib.contextmanager
    def serving(self) -> Iterator[Server]:
        """The provider's server."""
        with self._server(self.provider, self._hosts[0]) as server:
            yield server

    @contextlib.contextmanager
    def receiving(self) -> Iterator[Server]:
        """The getter's server, with an empty store."""
        with self._server(self.getter, self._hosts[1]) as server:
            yield server
        self._forget()

    def pull(self, server: Server, settings: Settings) -> dict[str, Any]:
        """The report of one pull into an empty store, with `cpu_s` of both sides and `peak_rss_mib` of the getter."""
        try:
            return self._move("get", self.getter, self.provider, server, settings)
        finally:
            self._forget()

    def push(self, server: Server, settings: Settings) -> dict[str, Any]:
        """The same of one push."""
        return self._move("put", self.provider, self.getter, server, settings)

    def _move(self, verb: str, own: Path, other: Path, server: Server, settings: Settings) -> dict[str, Any]:
        before = server.cpu_s()
        chosen = (str(settings.streams), settings.encoding, ",".join(settings.unencrypted_bulk_networks))
        command = self._command(own, verb, str(own), str(other), server.address, self.artifact, *chosen)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        report = dict(json.loads(done.stdout))
        report["own_cpu_s"] = report["cpu_s"]
        report["cpu_s"] += server.cpu_s() - before
        return report

    def _command(self, home: Path, *arguments: str) -> list[str]:
        return [*self._prefix[home], sys.executable, "-m", "benchmarks.pair", *self._options, *arguments]

    @contextlib.contextmanager
    def _server(self, home: Path, host: str) -> Iterator[Server]:
        command = self._command(home, "serve", str(home), host, self._networks)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            server = Server(str(json.loads(process.stdout.readline())["address"]), process)
            yield server
            rest, _ = process.communicate(timeout=30)
            server.peak_mib = float(json.loads(rest)["peak_rss_mib"])
        finally:
            process.kill()
            process.wait()

    def _forget(self) -> None:
        shutil.rmtree(Home(self.getter).store_dir, ignore_errors=True)


def first_block(home: Home, artifact: ArtifactId) -> list[Leaf]:
    """The leaves of an artifact's first block."""
    with Store.open(home.store_dir, LIMITS) as store:
        stored = store.artifact(artifact)
        return stored.leaves().leaves[: stored.manifest.layout.leading_leaves(1)]


class FirstBlock:
    """When all chunks of the first block are verified and stored; `look` is called as chunks arrive."""

    def __init__(self, store: Store, leaves: Sequence[Leaf]) -> None:
        self.seconds: float | None = None
        """From the making of this object on."""
        self._store = store
        self._lacking = list(leaves)
        self._began = time.monotonic()

    def look(self, stage: str, done: int, total: int, unit: str) -> None:
        self._lacking = [leaf for leaf in self._lacking if not self._store.has_chunk(leaf.digest)]
        if self.seconds is None and not self._lacking:
            self.seconds = time.monotonic() - self._began


async def _serve(root: Path, host: str, networks: tuple[str, ...]) -> None:
    """Says its address, serves until stdin ends, says its peak memory."""
    from kvsync.peer.server import PeerServer

    home, keys = open_node(root)
    with Store.open(home.store_dir, LIMITS) as store:
        settings = Settings(listen_host=host, free_floor_bytes=0, unencrypted_bulk_networks=networks)
        server = PeerServer(store, keys, home, TrustList(home, keys.signer.public), settings)
        found, port = await server.start()
        print(json.dumps({"address": f"{found}:{port}"}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop()
    print(json.dumps({"peak_rss_mib": peak_rss_mib()}), flush=True)


async def _move(verb: str, root: Path, other: Path, address: str, artifact: str, settings: Settings) -> None:
    from kvsync.sync import pull, push

    if settings.encoding != "identity":
        from kvsync.pack import planes  # noqa: F401 - numpy is loaded before the clock starts, as in a daemon
    home, keys = open_node(root)
    peer = Peer("other", open_node(other)[1].peer.public, (address,))
    block = first_block(Home(other if verb == "get" else root), ArtifactId(Digest.parse(artifact)))
    before = time.process_time()
    with Store.open(home.store_dir, LIMITS) as store:
        known: dict[str, object] = {}
        if verb == "get":
            trust, first = TrustList(home, keys.signer.public), FirstBlock(store, block)
            report = await pull(
                *(store, trust, peer, artifact), keys=keys, settings=settings, fingerprints=None, progress=first.look
            )
            known["first_block_s"] = first.seconds
        else:
            report = await push(store, peer, ArtifactId(Digest.parse(artifact)), keys=keys, settings=settings)
    used = time.process_time() - before
    known |= {"peak_rss_mib": peak_rss_mib(), "cpu_s": used}
    print(json.dumps({**report.as_dict(), **known}), flush=True)


def _split(networks: str) -> tuple[str, ...]:
    return tuple(networks.split(",")) if networks else ()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("serve", "get", "put"))
    parser.add_argument("rest", nargs="+")
    parser.add_argument("--compiled", action="store_true")
    options = parser.parse_args()
    if options.compiled and not LOADER.load():
        parser.error("numba is not installed: pip install 'kvsync[compiled]'")
    if options.verb == "serve":
        root, host, networks = options.rest
        asyncio.run(_serve(Path(root), host, _split(networks)))
    else:
        root, other, address, artifact, streams, encoding, networks = options.rest
        settings = Settings(streams=int(streams), encoding=encoding, unencrypted_bulk_networks=_split(networks))
        asyncio.run(_move(options.verb, Path(root), Path(other), address, artifact, settings))


if __name__ == "__main__":
    main()
