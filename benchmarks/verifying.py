"""kvsync's pull beside other tools that check what they fetch: the same number of bytes over the same loopback.

    python -m benchmarks.verifying [--json] [--mib 256] [--rounds 5] [--streams 3] [--install]

Tools that are not installed are left out and named; --install gets them from Debian and PyPI. Servers are processes
of their own, all data is in /dev/shm, the order alternates. The CPU seconds are those of both sides. Only kvsync,
syncthing, aria2 and curl use TLS here, and curl checks nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import rivals, synthetic
from benchmarks.pair import Pair
from benchmarks.syncthing import syncthing
from benchmarks.transfer import cpu_of_children
from kvsync.config import Settings
from kvsync_protocol.limits import GiB

NOTES: Final = {
    "kvsync": "mutual TLS 1.3; signature, Merkle root and SHA-256 of every chunk",
    "syncthing": "mutual TLS 1.3; SHA-256 of each block; from the rescan that finds the file",
    "aria2": "https, 4 connections; SHA-256 of the file afterwards",
    "rsync": "daemon, no TLS; its own checksum of the file",
    "skopeo": "from docker-registry, no TLS; SHA-256 of the blob",
    "libtorrent": "BitTorrent v2, no TLS; Merkle SHA-256",
    "curl": "https, into a file; checks nothing",
}
_TORRENT: Final = """
import sys, time, libtorrent as lt
torrent, folder, port, peer = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
off = {name: False for name in ("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp", "enable_outgoing_utp")}
session = lt.session({"listen_interfaces": f"127.0.0.1:{port}", "allow_multiple_connections_per_ip": True, **off})
wanted = lt.add_torrent_params()
wanted.ti, wanted.save_path = lt.torrent_info(torrent), folder
handle = session.add_torrent(wanted)
began = time.monotonic()
if peer:
    handle.connect_peer(("127.0.0.1", peer))
while not handle.status().is_seeding:
    time.sleep(0.005)
print(time.monotonic() - began, flush=True)
if not peer:
    sys.stdin.read()
"""

Get = Callable[[Path], Callable[[], None] | None]
"""Fetches into a directory; what it returns tidies up, outside the time."""
Ready = tuple[tuple[int, ...], Get]
"""The process ids of servers that run, and how to fetch from them."""


def run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def used_s(*pids: int) -> float:
    """CPU seconds of servers, of their children, and of those that have ended: rsync makes one per connection."""
    used = 0.0
    for server in map(psutil.Process, pids):
        ended = server.cpu_times()
        live = [process.cpu_times() for process in (server, *server.children())]
        used += sum(t.user + t.system for t in live) + ended.children_user + ended.children_system
    return used


@contextlib.contextmanager
def aria2(root: Path, source: Path, url: str, nginx: int) -> Iterator[Ready]:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    options = [
        "--check-certificate=false",
        "-x4",
        "-s4",
        "-q",
        f"--checksum=sha-256={digest}",
        "--file-allocation=none",
    ]
    yield (nginx,), lambda out: run("aria2c", *options, "-d", str(out), url)


@contextlib.contextmanager
def rsync(root: Path, source: Path, url: str, nginx: int) -> Iterator[Ready]:
    port = rivals.free_port()
    config = root / "rsyncd.conf"
    config.write_text(f"use chroot = no\nuid = 0\ngid = 0\n[m]\npath = {source.parent}\nread only = yes\n")
    command = ("rsync", "--daemon", "--no-detach", "--address=127.0.0.1", f"--port={port}", f"--config={config}")
    with rivals.running(*command) as process:
        rivals.wait_for(port, process)
        yield (process.pid,), lambda out: run("rsync", "-W", f"rsync://127.0.0.1:{port}/m/{source.name}", f"{out}/")


@contextlib.contextmanager
def skopeo(root: Path, source: Path, url: str, nginx: int) -> Iterator[Ready]:
    port, image = rivals.free_port(), root / "oci"
    config = root / "registry.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {root}/registry}}}}"
    config.write_text(f"version: 0.1\n{storage}\nhttp: {{addr: '127.0.0.1:{port}'}}\n")
    _oci_image(image, source)
    with rivals.running("docker-registry", "serve", str(config)) as process:
        rivals.wait_for(port, process)
        place, policy = f"docker://127.0.0.1:{port}/x:y", "--insecure-policy"
        run("skopeo", policy, "copy", "--dest-tls-verify=false", f"oci:{image}:y", place)
        shutil.rmtree(image)
        yield (process.pid,), lambda out: run("skopeo", policy, "copy", "--src-tls-verify=false", place, f"dir:{out}")


def _oci_image(image: Path, source: Path) -> None:
    """An image of one layer, which is the file."""
    blobs = image / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    layer = blob(source.read_bytes(), "layer.v1.tar")
    root = {"type": "layers", "diff_ids": [layer["digest"]]}
    config = blob(json.dumps({"architecture": "amd64", "os": "linux", "rootfs": root}).encode(), "config.v1+json")
    listed = {"schemaVersion": 2, "config": config, "layers": [layer]}
    manifest = blob(json.dumps(listed).encode(), "manifest.v1+json")
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "y"}
    (image / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [manifest]}))
    (image / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')


@contextlib.contextmanager
def libtorrent(root: Path, source: Path, url: str, nginx: int) -> Iterator[Ready]:
    import libtorrent as lt

    made = lt.create_torrent(lt.list_files(str(source)), 0, lt.create_torrent.v2_only)
    lt.set_piece_hashes(made, str(source.parent))
    torrent, port = root / "torrent", rivals.free_port()
    torrent.write_bytes(lt.bencode(made.generate()))
    program = (sys.executable, "-c", _TORRENT, str(torrent))
    seeding = subprocess.Popen(
        [*program, str(source.parent), str(port), "0"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if seeding.stdout is not None:
            seeding.stdout.readline()
        yield (seeding.pid,), lambda out: run(*program, str(out), str(rivals.free_port()), str(port))
    finally:
        seeding.kill()
        seeding.communicate()


@contextlib.contextmanager
def curl(root: Path, source: Path, url: str, nginx: int) -> Iterator[Ready]:
    def get(out: Path) -> None:
        rivals.curl(url, source.parent.parent, out / "file")

    yield (nginx,), get


TOOLS: Final = {
    "syncthing": syncthing,
    "aria2": aria2,
    "rsync": rsync,
    "skopeo": skopeo,
    "libtorrent": libtorrent,
    "curl": curl,
}
PROGRAMS: Final = {
    "syncthing": {"syncthing": "syncthing"},
    "aria2": {"aria2c": "aria2"},
    "rsync": {"rsync": "rsync"},
    "skopeo": {"skopeo": "skopeo", "docker-registry": "docker-registry"},
    "curl": {"curl": "curl"},
}
"""Of each tool, and their Debian packages; libtorrent is on PyPI."""


def installed(tool: str) -> bool:
    if tool == "libtorrent":
        with contextlib.suppress(ImportError):
            import libtorrent as lt

            return bool(lt.__version__)
        return False
    return all(shutil.which(program) for program in PROGRAMS[tool])


def install() -> None:
    """What is lacking."""
    packages = [package for tool in PROGRAMS if not installed(tool) for package in PROGRAMS[tool].values()]
    if packages := [*rivals.missing(), *packages]:
        rivals.apt_install(*packages)
    if not installed("libtorrent"):
        rivals.install("libtorrent")


def measure(root: Path, mib: int, rounds: int, streams: int) -> dict[str, Any]:
    """Every tool once per round, in alternating order; medians of rate, CPU and of kvsync's ratio round by round."""
    pair, web = Pair(root / "pair", partial(synthetic.deposit, mib=mib)), root / "nginx"
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(pair.serving())
        url, nginx = stack.enter_context(rivals.nginx(web, pair.bytes))
        source = web / "www" / "file"
        tools = [tool for tool in TOOLS if installed(tool)]
        ready: dict[str, Ready] = {tool: stack.enter_context(TOOLS[tool](root, source, url, nginx)) for tool in tools}

        def once(tool: str) -> tuple[float, float]:
            """Seconds, and CPU seconds of both sides."""
            out = root / "out"
            out.mkdir()
            if tool == "kvsync":  # the getter says its own, without the start of its interpreter
                found = pair.pull(server, Settings(streams=streams))
                return float(found["seconds"]), float(found["cpu_s"])
            pids, get = ready[tool]
            before, began = used_s(*pids) + cpu_of_children(), time.monotonic()
            tidy = get(out)
            took, used = time.monotonic() - began, used_s(*pids) + cpu_of_children() - before
            if tidy is not None:
                tidy()
            return took, used

        seen: dict[str, list[tuple[float, float]]] = {tool: [] for tool in ("kvsync", *tools)}
        for number in range(rounds + 1):
            for tool in seen if number % 2 else reversed(seen):
                seen[tool].append(once(tool))
                shutil.rmtree(root / "out")
    return {
        "bytes": pair.bytes,
        "rounds": rounds,
        "left_out": [tool for tool in TOOLS if tool not in tools],
        "tools": {
            tool: {
                "mb_per_s": round(pair.bytes / 1e6 / statistics.median(seconds for seconds, _ in values[1:]), 1),
                "cpu_s_per_gib": round(statistics.median(cpu for _, cpu in values[1:]) / pair.bytes * GiB, 2),
                "kvsync_is": round(
                    statistics.median(
                        theirs / ours for (theirs, _), (ours, _) in zip(values[1:], seen["kvsync"][1:], strict=True)
                    ),
                    2,
                ),
            }
            for tool, values in seen.items()
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=Settings().streams)
    parser.add_argument("--install", action="store_true", help="install what is missing")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    options = parser.parse_args()
    if options.install:
        install()
    root = Path(tempfile.mkdtemp(prefix="kvsync-verifying-", dir=options.directory))
    try:
        result = measure(root, options.mib, options.rounds, options.streams)
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps(result))
        return 0
    for tool, found in result["tools"].items():
        print(
            f"  {tool:10} {found['mb_per_s']:7.0f} MB/s {found['cpu_s_per_gib']:6.2f} CPU s/GiB"
            f"   kvsync is {found['kvsync_is']:5.2f} of it   {NOTES[tool]}"
        )
    if result["left_out"]:
        print(f"not installed: {', '.join(result['left_out'])}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
