"""How fast a verified pull is, against iperf3 and against curl from nginx over https, and what memory it takes.

    python benchmarks/transfer.py [--json] [--mib 256] [--rounds 5] [--streams 2] [--install]

Server and getter are separate processes, as in real life, on loopback, with their stores in memory
(/dev/shm). The artifact holds random bytes under a real geometry. kvsync's time is the whole pull:
handshakes, manifest, leaf table, every chunk hashed and stored, publish. curl's is its transfer alone;
it checks nothing. `curl_file` stores what it receives, as a pull does; `curl_null` throws it away.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import resource
import shutil
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import rivals, synthetic
from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.store import Store, StoreLimits
from kvsync_protocol.limits import GiB, MiB

LIMITS: Final = StoreLimits(free_floor_bytes=0)
MEMORY_BAR_MIB: Final = 96
RATIO_BAR: Final = 0.7


def peak_rss_mib() -> float:
    """VmHWM of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no VmHWM in /proc/self/status")


def open_node(root: Path) -> tuple[Home, NodeKeys]:
    home = Home(root)
    home.create()
    return home, NodeKeys.create(home)


async def serve(root: Path) -> None:
    """The server process: says its port, serves until stdin ends, says its peak memory."""
    from kvsync.peer.server import PeerServer

    home, keys = open_node(root)
    with Store.open(home.store_dir, LIMITS) as store:
        server = PeerServer(store, keys, home, TrustList(home, keys.signer.public), Settings())
        host, port = await server.start()
        print(json.dumps({"address": f"{host}:{port}"}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop()
    print(json.dumps({"peak_rss_mib": peak_rss_mib()}), flush=True)


async def get(root: Path, provider: Path, address: str, artifact: str, streams: int) -> None:
    """The getter process: one pull into an empty store."""
    from kvsync.sync import pull

    home, keys = open_node(root)
    key = open_node(provider)[1].peer.public
    before = time.process_time()
    with Store.open(home.store_dir, LIMITS) as store:
        report = await pull(
            store,
            TrustList(home, keys.signer.public),
            Peer("provider", key, (address,)),
            artifact,
            keys=keys,
            settings=Settings(streams=streams),
            fingerprints=None,
        )
    used = time.process_time() - before
    print(json.dumps({**report.as_dict(), "peak_rss_mib": peak_rss_mib(), "cpu_s": used}), flush=True)


class Pair:
    """A provider with an artifact, and a getter's home, below one directory."""

    def __init__(self, root: Path, mib: int) -> None:
        self.provider, self.getter = root / "provider", root / "getter"
        home, keys = open_node(self.provider)
        with Store.open(home.store_dir, LIMITS) as store:
            stored = synthetic.deposit(store, keys.signer, mib)
        self.artifact, self.bytes = stored.artifact.hex, stored.bytes
        other, other_keys = open_node(self.getter)
        PeerBook(home).add(Peer("getter", other_keys.peer.public, (), ("get",)))
        TrustList(other, other_keys.signer.public).add("provider", keys.signer.public)
        self.server_peak_mib = 0.0

    @contextlib.contextmanager
    def serving(self) -> Iterator[tuple[str, int]]:
        """The server's address and process id."""
        command = [sys.executable, "-m", "benchmarks.transfer", "--serve", str(self.provider)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            yield str(json.loads(process.stdout.readline())["address"]), process.pid
            rest, _ = process.communicate(timeout=30)
            self.server_peak_mib = float(json.loads(rest)["peak_rss_mib"])
        finally:
            process.kill()
            process.wait()

    def pull(self, address: str, streams: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "benchmarks.transfer", "--get", str(self.getter), str(self.provider)]
        command += [address, self.artifact, str(streams)]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        shutil.rmtree(Home(self.getter).store_dir)
        return dict(json.loads(done.stdout))


class Speed:
    """MB/s and CPU seconds of each tool, round by round, over the same number of bytes."""

    TOOLS: Final = ("kvsync", "curl_file", "iperf3", "curl_null")

    def __init__(self, pair: Pair, address: str, server: int, web: Path, url: str, nginx: int, streams: int) -> None:
        self._pair, self._address, self._server, self._streams = pair, address, server, streams
        self._web, self._url, self._nginx = web, url, nginx
        self.mb_per_s: dict[str, list[float]] = {tool: [] for tool in self.TOOLS}
        self.cpu_s_per_gib: dict[str, list[float]] = {tool: [] for tool in self.TOOLS}

    def run(self, tool: str) -> None:
        serving = self._server if tool == "kvsync" else self._nginx
        before = cpu_s(serving), cpu_of_children()
        own = None
        match tool:
            case "kvsync":
                report = self._pair.pull(self._address, self._streams)
                speed, own = self._pair.bytes / 1e6 / report["seconds"], float(report["cpu_s"])
            case "iperf3":
                speed = rivals.iperf3(self._pair.bytes)
            case "curl_file":
                speed = rivals.curl(self._url, self._web, self._web / "out")
                (self._web / "out").unlink()
            case _:
                speed = rivals.curl(self._url, self._web, Path("/dev/null"))
        used = cpu_s(serving) - before[0] + (cpu_of_children() - before[1] if own is None else own)
        self.mb_per_s[tool].append(speed)
        self.cpu_s_per_gib[tool].append(used / (self._pair.bytes / GiB))

    def forget(self) -> None:
        for values in (*self.mb_per_s.values(), *self.cpu_s_per_gib.values()):
            values.clear()


def cpu_s(pid: int) -> float:
    """CPU seconds of a process and the children it has now."""
    process = psutil.Process(pid)
    times = [p.cpu_times() for p in (process, *process.children())]
    return float(sum(t.user + t.system for t in times))


def cpu_of_children() -> float:
    """CPU seconds of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_speed(root: Path, mib: int, rounds: int, streams: int) -> dict[str, Any]:
    """Medians over `rounds`, every tool once per round, in alternating order."""
    pair, web = Pair(root / "speed", mib), root / "nginx"
    with pair.serving() as (address, server), rivals.nginx(web, pair.bytes) as (url, nginx):
        speed = Speed(pair, address, server, web, url, nginx, streams)
        for tool in speed.TOOLS:  # warm up: page cache, CPU clock
            speed.run(tool)
        speed.forget()
        for number in range(rounds):
            for tool in speed.TOOLS if number % 2 == 0 else reversed(speed.TOOLS):
                speed.run(tool)
    medians = {tool: statistics.median(values) for tool, values in speed.mb_per_s.items()}
    return {
        "bytes": pair.bytes,
        "streams": streams,
        "rounds": rounds,
        "mb_per_s": {tool: round(value, 1) for tool, value in medians.items()},
        "all_mb_per_s": {tool: [round(value, 1) for value in values] for tool, values in speed.mb_per_s.items()},
        "cpu_s_per_gib": {tool: round(statistics.median(values), 2) for tool, values in speed.cpu_s_per_gib.items()},
        "ratio_to": {tool: round(medians["kvsync"] / medians[tool], 3) for tool in speed.TOOLS[1:]},
    }


def measure_memory(root: Path, sizes: list[int], streams: int) -> dict[str, Any]:
    """Growth of both processes' peak memory over what a tiny artifact takes."""
    peaks = {}
    for mib in (1, *sizes):
        pair = Pair(root / f"memory-{mib}", mib)
        with pair.serving() as (address, _):
            getter = float(pair.pull(address, streams)["peak_rss_mib"])
        peaks[mib] = {"server": pair.server_peak_mib, "getter": getter, "mib": pair.bytes / MiB}
        shutil.rmtree(root / f"memory-{mib}")
    return {
        "baseline_mib": {side: round(peaks[1][side], 1) for side in ("server", "getter")},
        "growth_mib": {
            str(round(peaks[mib]["mib"])): {
                side: round(peaks[mib][side] - peaks[1][side], 1) for side in ("server", "getter")
            }
            for mib in sizes
        },
    }


def show(result: dict[str, Any]) -> None:
    speed, memory = result["speed"], result["memory"]
    print(
        f"one artifact of {speed['bytes'] / MiB:.0f} MiB, {speed['streams']} streams, medians of {speed['rounds']}\n"
    )
    for tool, note in (
        ("kvsync", "whole pull over mutual TLS 1.3, every chunk SHA-256, stored"),
        ("curl_file", "https from nginx, stored, nothing checked"),
        ("curl_null", "https from nginx, thrown away"),
        ("iperf3", "plain TCP, one stream, thrown away"),
    ):
        ratio = "" if tool == "kvsync" else f"kvsync is {speed['ratio_to'][tool]:.2f} of it"
        numbers = f"{speed['mb_per_s'][tool]:8.0f} MB/s {speed['cpu_s_per_gib'][tool]:6.2f} CPU s/GiB"
        print(f"  {tool:10} {numbers}   {note:58} {ratio}")
    print(f"\npeak memory, growth over a tiny artifact (bar: {MEMORY_BAR_MIB} MiB)")
    for size, sides in memory["growth_mib"].items():
        print(f"  {size:>6} MiB   server {sides['server']:6.1f} MiB   getter {sides['getter']:6.1f} MiB")
    print(f"\nheld: {result['held']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=Settings().streams)
    parser.add_argument("--install", action="store_true", help="apt-get install what is missing")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--get", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve))
        return 0
    if options.get:
        root, provider, address, artifact, streams = options.get
        asyncio.run(get(Path(root), Path(provider), address, artifact, int(streams)))
        return 0
    lacking = rivals.missing()
    if lacking and options.install:
        command = [
            shutil.which("apt-get") or "/usr/bin/apt-get",
            "install",
            "-y",
            "--no-install-recommends",
            *lacking,
        ]
        subprocess.run(command, check=True, stdout=sys.stderr)
        lacking = rivals.missing()
    if lacking:
        print(f"not installed: apt-get install {' '.join(lacking)}, or run with --install", file=sys.stderr)
        return 2
    root = Path(tempfile.mkdtemp(prefix="kvsync-transfer-", dir=options.directory))
    try:
        result: dict[str, Any] = {
            "machine": {"cpu": platform.processor() or platform.machine(), "openssl": ssl.OPENSSL_VERSION},
            "data": "synthetic: random bytes under a real geometry",
            "speed": measure_speed(root, options.mib, options.rounds, options.streams),
            "memory": measure_memory(root, [options.mib, 4 * options.mib], options.streams),
        }
    finally:
        shutil.rmtree(root)
    growth = max(max(sides.values()) for sides in result["memory"]["growth_mib"].values())
    result["held"] = {
        f"ratio to curl_file >= {RATIO_BAR}": result["speed"]["ratio_to"]["curl_file"] >= RATIO_BAR,
        f"memory growth < {MEMORY_BAR_MIB} MiB": growth < MEMORY_BAR_MIB,
    }
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if all(result["held"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
