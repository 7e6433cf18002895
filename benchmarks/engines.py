"""Transfer engines of inference systems, which check nothing: Mooncake's over TCP, and NIXL with UCX over TCP.

    python -m benchmarks.engines mooncake|nixl near|far BYTES    what their processes run

Two processes in a network namespace of their own, because Mooncake listens at every address; only its loopback is
up. The near one writes a buffer of random bytes into the far one's memory: reading is slower with NIXL, the same with
Mooncake. Buffers are registered, touched and connected beforehand, and nothing reaches a file. After each transfer,
outside its time, SHA-256 of both buffers is compared, so that no engine is credited with bytes that did not arrive.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import hashlib
import json
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol

from benchmarks import rivals

PACKAGES: Final = {"mooncake": "mooncake-transfer-engine-non-cuda", "nixl": "nixl-cu12"}
"""On PyPI. Both run without CUDA and RDMA; NIXL's also needs numpy, Mooncake's the Debian packages below."""
MODULES: Final = {"mooncake": "mooncake.engine", "nixl": "nixl_cu12._api"}
LIBRARIES: Final = {"ibverbs": "libibverbs1", "numa": "libnuma1", "curl": "libcurl4"}
_SETTINGS: Final = {
    "MC_TCP_ENABLE_CONNECTION_POOL": "1",
    "MC_TCP_SLICE_SIZE": str(4 << 20),
    "UCX_TLS": "tcp",
    "UCX_NET_DEVICES": "lo",
}
"""With which Mooncake is fastest here; UCX would take shared memory on one machine."""
_POLL_S: Final = 0.0002


class Engine(Protocol):
    def address(self) -> list[Any]:
        """What the other side needs to write here; JSON."""

    def write(self) -> None:
        """The whole buffer into the peer's, until the engine says that it is there."""


class Mooncake:
    def __init__(self, role: str, start: int, size: int, peer: list[Any]) -> None:
        from mooncake.engine import TransferEngine

        self._engine, self._start, self._size, self._peer = TransferEngine(), start, size, peer
        if self._engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("Mooncake does not start")
        if self._engine.register_memory(start, size):
            raise RuntimeError("Mooncake does not take the memory")

    def address(self) -> list[Any]:
        return [f"127.0.0.1:{self._engine.get_rpc_port()}", self._start]

    def write(self) -> None:
        name, start = self._peer
        if self._engine.transfer_sync_write(name, self._start, start, self._size):
            raise RuntimeError("Mooncake does not transfer")


class Nixl:
    def __init__(self, role: str, start: int, size: int, peer: list[Any]) -> None:
        from nixl_cu12._api import nixl_agent, nixl_agent_config

        self._agent, self._start, self._size = nixl_agent(role, nixl_agent_config(backends=["UCX"])), start, size
        self._agent.register_memory([(start, size, 0, "")], "DRAM")
        if peer:
            self._agent.add_remote_agent(bytes.fromhex(peer[0]))
            self._theirs = self._agent.get_xfer_descs([(peer[1], size, 0)], "DRAM")

    def address(self) -> list[Any]:
        return [self._agent.get_agent_metadata().hex(), self._start]

    def write(self) -> None:
        mine = self._agent.get_xfer_descs([(self._start, self._size, 0)], "DRAM")
        handle = self._agent.initialize_xfer("WRITE", mine, self._theirs, "far")
        state = self._agent.transfer(handle)
        while state == "PROC":
            time.sleep(_POLL_S)
            state = self._agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"NIXL says {state}")
        self._agent.release_xfer_handle(handle)


ENGINES: Final[dict[str, Callable[[str, int, int, list[Any]], Engine]]] = {"mooncake": Mooncake, "nixl": Nixl}


def installed(name: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {MODULES[name]}"], capture_output=True).returncode == 0


def install() -> None:
    """What is lacking of both."""
    for name, package in PACKAGES.items():
        if not installed(name):
            rivals.install(package)
    libraries = [package for library, package in LIBRARIES.items() if ctypes.util.find_library(library) is None]
    if libraries:
        rivals.apt_install(*libraries)


def transfer(name: str, size: int) -> tuple[float, float]:
    """Seconds, and CPU seconds of both sides, of one transfer after one to warm up.

    Both sides live only as long: NIXL's threads never rest, and would take the cores from whoever is measured next.
    """
    alone = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    up = ["sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    with subprocess.Popen(
        [*alone, *up, *_side(name, "near", size)],
        env={**os.environ, **_SETTINGS},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as near:
        _ask(near, "transfer")
        seconds, used = _ask(near, "transfer")
    return float(seconds), float(used)


def _side(name: str, role: str, size: int) -> list[str]:
    return [sys.executable, "-m", "benchmarks.engines", name, role, str(size)]


def _ask(process: subprocess.Popen[str], wish: str) -> list[Any]:
    """One line to a side, one line of JSON back."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{wish}\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        raise RuntimeError(f"{process.args!r} ended")
    return list(json.loads(answer))


def main() -> NoReturn:
    """A side: answers each line of standard input with one of JSON, and ends with the input."""
    name, role, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the engines print, too
    space = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    start = ctypes.addressof(ctypes.c_char.from_buffer(space))

    def answer(*values: object) -> None:
        print(json.dumps(values), file=out)

    if role == "far":
        engine = ENGINES[name](role, start, size, [])
        for line in sys.stdin:
            if line == "address\n":
                answer(*engine.address())
            elif line == "clear\n":
                ctypes.memset(start, 0, size)
                answer(time.process_time())
            else:
                answer(time.process_time(), hashlib.sha256(space).hexdigest())
    else:
        space[:] = os.urandom(size)
        digest = hashlib.sha256(space).hexdigest()
        far = subprocess.Popen(_side(name, "far", size), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        engine = ENGINES[name](role, start, size, _ask(far, "address"))
        for _ in sys.stdin:
            (theirs,) = _ask(far, "clear")
            mine, began = time.process_time(), time.monotonic()
            engine.write()
            took, used = time.monotonic() - began, time.process_time() - mine
            ended, arrived = _ask(far, "digest")
            if arrived != digest:
                raise RuntimeError("the bytes that arrived are others")
            answer(took, used + ended - theirs)
        far.communicate()
    out.flush()
    os._exit(0)  # their threads do not end by themselves


if __name__ == "__main__":
    main()
