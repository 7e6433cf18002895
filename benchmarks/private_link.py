"""What leaving TLS is worth on a private link: a verified pull without encryption against iperf3, an rsync daemon and
the transfer engines of inference systems.

    python -m benchmarks.private_link [--json] [--mib 1024] [--rounds 5] [--streams 2] [--install]

Server and client are separate processes on loopback, all data is in /dev/shm, the order alternates. kvsync's time is
the whole transfer: handshakes, manifest, leaf table, every chunk hashed and stored, publish. iperf3 throws its bytes
away; rsync stores a file of as many random bytes and checks it by its own checksum; its time holds the start of its
process. Mooncake and NIXL write from memory into memory, over connections made before, and check nothing; where they
are not installed they are left out and named. Ratios are medians of the ratios within each round. CPU seconds are
those of both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks import engines, rivals, synthetic
from benchmarks.pair import Pair
from benchmarks.transfer import cpu_of_children
from benchmarks.verifying import rsync, used_s
from kvsync.config import Settings
from kvsync_protocol.limits import GiB, MiB

NETWORKS: Final = ("127.0.0.0/8",)
NOTES: Final = {
    "pull": "whole pull, chunks without encryption, every chunk SHA-256, stored",
    "pull_tls": "the same over mutual TLS 1.3",
    "push": "whole push without encryption, the same checks on the other side",
    "iperf3": "plain TCP, one stream, thrown away",
    "rsync": "daemon, whole file, its own checksum, stored",
    "mooncake": "its transfer engine over TCP, memory to memory, unchecked",
    "nixl": "with UCX over TCP, memory to memory, unchecked",
}
BARS: Final = {"iperf3": 0.5, "rsync": 1.4, "mooncake": 1.7, "nixl": 1.7}
PUSH_BAR: Final = 0.85


def measure(root: Path, mib: int, rounds: int, streams: int) -> dict[str, Any]:
    """Every tool once per round, in alternating order, after one round to warm up."""
    pair = Pair(root / "pair", partial(synthetic.deposit, mib=mib), networks=NETWORKS)
    clear, secure = Settings(streams=streams, unencrypted_bulk_networks=NETWORKS), Settings(streams=streams)
    source = root / "source" / "file"
    source.parent.mkdir()
    with source.open("wb") as file:
        for start in range(0, pair.bytes, MiB):
            file.write(os.urandom(min(MiB, pair.bytes - start)))
    left_out = [name for name in engines.ENGINES if not engines.installed(name)]
    with pair.serving() as server, rsync(root, source, "", 0) as (daemons, fetch):

        def once(tool: str) -> tuple[float, float]:
            """MB/s (10^6), and CPU seconds of both sides per GiB."""
            if tool == "iperf3":
                before = cpu_of_children()
                return rivals.iperf3(pair.bytes), (cpu_of_children() - before) / pair.bytes * GiB
            if tool in engines.ENGINES:
                took, used = engines.transfer(tool, pair.bytes)
            elif tool == "rsync":
                out = root / "out"
                out.mkdir()
                before, began = used_s(*daemons) + cpu_of_children(), time.monotonic()
                fetch(out)
                took, used = time.monotonic() - began, used_s(*daemons) + cpu_of_children() - before
                shutil.rmtree(out)
            else:
                if tool == "push":
                    with pair.receiving() as receiver:
                        found = pair.push(receiver, clear)
                else:
                    found = pair.pull(server, clear if tool == "pull" else secure)
                if found["bytes_unencrypted"] != (0 if tool == "pull_tls" else found["bytes_wire"]):
                    raise RuntimeError(f"{tool} went another way than it should")
                took, used = float(found["seconds"]), float(found["cpu_s"])
            return pair.bytes / 1e6 / took, used / pair.bytes * GiB

        seen: dict[str, list[tuple[float, float]]] = {tool: [] for tool in NOTES if tool not in left_out}
        for number in range(rounds + 1):
            for tool in seen if number % 2 else reversed(seen):
                seen[tool].append(once(tool))
    measured = {tool: values[1:] for tool, values in seen.items()}
    pulls = [speed for speed, _ in measured["pull"]]

    def ratio(tool: str) -> float:
        """What the pull is of `tool`'s speed."""
        pairs = zip(pulls, measured[tool], strict=True)
        return round(statistics.median(own / speed for own, (speed, _) in pairs), 3)

    return {
        "bytes": pair.bytes,
        "streams": streams,
        "rounds": rounds,
        "left_out": left_out,
        "mb_per_s": {tool: [round(speed, 1) for speed, _ in values] for tool, values in measured.items()},
        "median_mb_per_s": {
            tool: round(statistics.median(speed for speed, _ in values), 1) for tool, values in measured.items()
        },
        "cpu_s_per_gib": {
            tool: round(statistics.median(cpu for _, cpu in values), 2) for tool, values in measured.items()
        },
        "pull_is": {tool: ratio(tool) for tool in measured if tool != "pull"},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=Settings().streams)
    parser.add_argument("--install", action="store_true", help="install what is missing")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    options = parser.parse_args()
    if options.install:
        engines.install()
    lacking = [tool for tool in ("iperf3", "rsync") if shutil.which(tool) is None]
    if lacking and options.install:
        rivals.apt_install(*lacking)
    elif lacking:
        print(f"not installed: apt-get install {' '.join(lacking)}, or run with --install", file=sys.stderr)
        return 2
    root = Path(tempfile.mkdtemp(prefix="kvsync-private-", dir=options.directory))
    try:
        result = measure(root, options.mib, options.rounds, options.streams)
    finally:
        shutil.rmtree(root)
    measured = {tool: bar for tool, bar in BARS.items() if tool not in result["left_out"]}
    result["held"] = {f"pull over {tool} >= {bar}": result["pull_is"][tool] >= bar for tool, bar in measured.items()}
    result["held"][f"push over pull >= {PUSH_BAR}"] = 1 / result["pull_is"]["push"] >= PUSH_BAR
    if options.json:
        print(json.dumps(result))
    else:
        for tool in result["median_mb_per_s"]:
            ratio = "" if tool == "pull" else f"the pull is {result['pull_is'][tool]:.2f} of it"
            numbers = f"{result['median_mb_per_s'][tool]:7.0f} MB/s {result['cpu_s_per_gib'][tool]:6.2f} CPU s/GiB"
            print(f"  {tool:9} {numbers}   {NOTES[tool]:67} {ratio}")
        if result["left_out"]:
            print(f"not installed: {', '.join(result['left_out'])}", file=sys.stderr)
        print(f"\nheld: {result['held']}")
    return 0 if all(result["held"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
