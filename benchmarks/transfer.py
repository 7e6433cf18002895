"""How fast a verified pull and a push are, against iperf3 and curl from nginx over https, and what memory they take.

    python benchmarks/transfer.py [--json] [--mib 256] [--rounds 5] [--streams 2] [--install]

Server and client are separate processes, as in real life, on loopback, with their stores in memory
(/dev/shm). The artifact holds random bytes under a real geometry. kvsync's time is the whole transfer:
handshakes, manifest, leaf table, every chunk hashed and stored, publish. curl's is its transfer alone;
it checks nothing. `curl_file` stores what it receives, as a pull does; `curl_null` throws it away.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shutil
import ssl
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import rivals, synthetic
from benchmarks.pair import Pair, Server
from kvsync.config import Settings
from kvsync_protocol.limits import GiB, MiB

MEMORY_BAR_MIB: Final = 96
RATIO_BAR: Final = 0.7
PUSH_BAR: Final = 0.85


class Speed:
    """MB/s and CPU seconds of each tool, round by round, over the same number of bytes."""

    TOOLS: Final = ("kvsync", "kvsync_push", "curl_file", "iperf3", "curl_null")

    def __init__(self, pair: Pair, server: Server, web: Path, url: str, nginx: int, streams: int) -> None:
        self._pair, self._server, self._settings = pair, server, Settings(streams=streams)
        self._web, self._url, self._nginx = web, url, nginx
        self.mb_per_s: dict[str, list[float]] = {tool: [] for tool in self.TOOLS}
        self.cpu_s_per_gib: dict[str, list[float]] = {tool: [] for tool in self.TOOLS}

    def run(self, tool: str) -> None:
        if tool.startswith("kvsync"):
            report = self._kvsync(push=tool == "kvsync_push")
            speed, used = self._pair.bytes / 1e6 / report["seconds"], float(report["cpu_s"])
        else:
            before = cpu_s(self._nginx), cpu_of_children()
            speed = self._rival(tool)
            used = cpu_s(self._nginx) - before[0] + cpu_of_children() - before[1]
        self.mb_per_s[tool].append(speed)
        self.cpu_s_per_gib[tool].append(used / (self._pair.bytes / GiB))

    def _kvsync(self, *, push: bool) -> dict[str, Any]:
        if not push:
            return self._pair.pull(self._server, self._settings)
        with self._pair.receiving() as receiver:
            return self._pair.push(receiver, self._settings)

    def _rival(self, tool: str) -> float:
        if tool == "iperf3":
            return rivals.iperf3(self._pair.bytes)
        if tool == "curl_null":
            return rivals.curl(self._url, self._web, Path("/dev/null"))
        speed = rivals.curl(self._url, self._web, self._web / "out")
        (self._web / "out").unlink()
        return speed

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
    pair, web = Pair(root / "speed", partial(synthetic.deposit, mib=mib)), root / "nginx"
    with pair.serving() as server, rivals.nginx(web, pair.bytes) as (url, nginx):
        speed = Speed(pair, server, web, url, nginx, streams)
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
        "push_over_pull": round(medians["kvsync_push"] / medians["kvsync"], 3),
    }


def measure_memory(root: Path, sizes: list[int], streams: int) -> dict[str, Any]:
    """Growth of both processes' peak memory over what a tiny artifact takes."""
    peaks = {}
    for mib in (1, *sizes):
        pair = Pair(root / f"memory-{mib}", partial(synthetic.deposit, mib=mib))
        with pair.serving() as server:
            getter = float(pair.pull(server, Settings(streams=streams))["peak_rss_mib"])
        peaks[mib] = {"server": server.peak_mib, "getter": getter, "mib": pair.bytes / MiB}
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
        ("kvsync_push", "whole push, the same checks on the other side"),
        ("curl_file", "https from nginx, stored, nothing checked"),
        ("curl_null", "https from nginx, thrown away"),
        ("iperf3", "plain TCP, one stream, thrown away"),
    ):
        ratio = "" if tool == "kvsync" else f"kvsync is {speed['ratio_to'][tool]:.2f} of it"
        numbers = f"{speed['mb_per_s'][tool]:8.0f} MB/s {speed['cpu_s_per_gib'][tool]:6.2f} CPU s/GiB"
        print(f"  {tool:11} {numbers}   {note:58} {ratio}")
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
    options = parser.parse_args()
    lacking = rivals.missing()
    if lacking and options.install:
        rivals.apt_install(*lacking)
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
        f"push over pull >= {PUSH_BAR}": result["speed"]["push_over_pull"] >= PUSH_BAR,
        f"memory growth < {MEMORY_BAR_MIB} MiB": growth < MEMORY_BAR_MIB,
    }
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if all(result["held"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
