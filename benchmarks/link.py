"""What a pull of real KV state makes of a slow link, in each encoding: effective rate over the link's raw rate.

    python -m benchmarks.link [--json] [--model smollm2-135m] [--dtype BF16] [--tokens 4096] [--rounds 5] [--mbit N]
                              [--compiled]

Two network namespaces, joined by a virtual cable that `tc tbf` shapes to --mbit in both directions (bits of whole
frames, as on a real line). The provider and every getter are processes of their own, stores in memory. The raw rate
is what a bare TCP connection brings across in the same session, payload alone. kvsync's time is the whole pull:
handshakes, manifest, tables, every chunk decoded, hashed and stored, publish. The first block's time runs from the
same moment until its chunks are verified; it is set against what its bytes take on the bare connection. Needs root,
`ip` and `tc`.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from benchmarks import kv
from benchmarks.pair import Pair, first_block
from kvsync.config import Home, Settings
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.limits import KiB, MiB
from kvsync_protocol.signing import SigningKey

ENCODINGS: Final = ("identity", "zstd", "planes", "auto")
NEAR: Final = "kvbench-a"
FAR: Final = "kvbench-b"
SERVER: Final = "10.213.7.1"
GETTER: Final = "10.213.7.2"
RAW_PORT: Final = 5901
RAW_BYTES: Final = 64 * MiB


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def cable(mbit: int) -> Iterator[None]:
    """Two namespaces and a shaped link between them, removed in the end."""
    try:
        for name in (NEAR, FAR):
            run("ip", "netns", "add", name)
        run("ip", "link", "add", "kvb0", "netns", NEAR, "type", "veth", "peer", "name", "kvb1", "netns", FAR)
        for name, device, address in ((NEAR, "kvb0", SERVER), (FAR, "kvb1", GETTER)):
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
            run("ip", "-n", name, "link", "set", device, "up")
            shape = ("root", "tbf", "rate", f"{mbit}mbit", "burst", "256kb", "latency", "20ms")
            run("tc", "-n", name, "qdisc", "add", "dev", device, *shape)
        yield
    finally:
        for name in (NEAR, FAR):
            with suppress(subprocess.CalledProcessError):
                run("ip", "netns", "del", name)


def inside(name: str, *arguments: str) -> list[str]:
    """This program with `arguments`, in a namespace."""
    return ["ip", "netns", "exec", name, sys.executable, "-m", "benchmarks.link", *arguments]


def raw_send() -> None:
    """Serve one connection with RAW_BYTES."""
    with socket.create_server((SERVER, RAW_PORT)) as server:
        print("ready", flush=True)
        connection, _ = server.accept()
        with connection:
            connection.sendall(bytes(RAW_BYTES))


def raw_receive() -> None:
    """Print the seconds that RAW_BYTES take to arrive."""
    space = bytearray(256 * KiB)
    with socket.create_connection((SERVER, RAW_PORT)) as connection:
        began, left = time.monotonic(), RAW_BYTES
        while left:
            left -= connection.recv_into(space) or left
        print(time.monotonic() - began, flush=True)


def raw_rate() -> float:
    """MB/s of a bare TCP connection."""
    with subprocess.Popen(inside(NEAR, "--raw-send"), stdout=subprocess.PIPE, text=True) as sender:
        assert sender.stdout is not None
        sender.stdout.readline()
        done = subprocess.run(inside(FAR, "--raw-receive"), check=True, stdout=subprocess.PIPE, text=True)
    return RAW_BYTES / 1e6 / float(done.stdout)


def measure(root: Path, args: argparse.Namespace) -> dict[str, Any]:
    def deposit(store: Store, key: SigningKey) -> StoredArtifact:
        return kv.compute(store, key, kv.engine_of(args.model, args.dtype), args.tokens)

    near, far = (("ip", "netns", "exec", name) for name in (NEAR, FAR))
    pair = Pair(root, deposit, hosts=(SERVER, GETTER), near=near, far=far, compiled=args.compiled)
    raw: list[float] = []
    pulls: dict[str, list[dict[str, Any]]] = {encoding: [] for encoding in ENCODINGS}
    with cable(args.mbit), pair.serving() as server:
        for number in range(args.rounds + 1):
            raw.append(raw_rate())
            for encoding in ENCODINGS if number % 2 == 0 else reversed(ENCODINGS):
                pulls[encoding].append(pair.pull(server, Settings(encoding=encoding, streams=args.streams)))
            if not number:  # warm-up: page cache, imports on the providing side
                raw.clear()
                for found in pulls.values():
                    found.clear()
    link = statistics.median(raw)
    block = sum(leaf.size for leaf in first_block(Home(pair.provider), ArtifactId(Digest.parse(pair.artifact))))
    return {
        "model": args.model,
        "dtype": args.dtype,
        "tokens": args.tokens,
        "bytes": pair.bytes,
        "mbit": args.mbit,
        "raw_mb_s": round(link, 1),
        "first_block_bytes": block,
        "first_block_raw_s": round(block / 1e6 / link, 4),
        "encodings": {
            encoding: {
                "mb_s": round(pair.bytes / 1e6 / statistics.median(one["seconds"] for one in found), 1),
                "over_raw": round(pair.bytes / 1e6 / statistics.median(one["seconds"] for one in found) / link, 3),
                "moving_over_raw": round(
                    pair.bytes / 1e6 / statistics.median(one["moving_seconds"] for one in found) / link, 3
                ),
                "wire_ratio": round(pair.bytes / statistics.median(one["bytes_wire"] for one in found), 3),
                "first_block_s": round(statistics.median(one["first_block_s"] for one in found), 4),
                "getter_cpu_s": round(statistics.median(one["own_cpu_s"] for one in found), 3),
            }
            for encoding, found in pulls.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="BF16")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mbit", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=Settings().streams)
    parser.add_argument("--compiled", action="store_true", help="as between processes that have moved much before")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--raw-send", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--raw-receive", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.raw_send:
        raw_send()
    elif args.raw_receive:
        raw_receive()
    else:
        if os.geteuid():
            parser.error("network namespaces need root")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            result = measure(Path(folder), args)
        if args.json:
            kv.write(result, None)
            return 0
        print(f"{args.model} {args.dtype}, {result['bytes'] / 1e6:.1f} MB, bare TCP {result['raw_mb_s']} MB/s")
        for encoding, found in result["encodings"].items():
            print(
                f"{encoding:9} {found['mb_s']:7.1f} MB/s, {found['over_raw']:.2f} x raw "
                f"({found['moving_over_raw']:.2f} while moving), {found['wire_ratio']:.3f} x smaller, "
                f"first block after {found['first_block_s'] / result['first_block_raw_s']:.2f} of its time bare, "
                f"getter {found['getter_cpu_s']:.2f} CPU s"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
