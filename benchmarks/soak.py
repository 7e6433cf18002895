"""Random push, pull, pin, unpin, rm, gc and more from several processes on two stores: is a claimed byte ever lost?

    python -m benchmarks.soak [--json] [--minutes 10] [--processes 4] [--seed 0] [--kills 1]

Two homes, each with a peer server in its first process, and a quota with room for a quarter of the artifacts.
Between two phases everybody lets go of everything and rests: then descriptors are counted and leases are looked at.
In each phase but the first, processes that serve nobody are killed and started again.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.seeded import SIGNER
from benchmarks.soak_node import HOMES, LIMITS
from benchmarks.soundness import store_problems
from kvsync.config import Home
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.store import Store
from kvsync_protocol.limits import KiB

WARM_UP_S: Final = 10.0
"""Longest first phase: after it every descriptor that is kept for good is open."""
PHASES: Final = 6
DESCRIPTIONS: Final = 16 * KiB
"""What those of a few artifacts take, published at once: only chunks are reserved under a quota."""


class Process:
    """One worker, from outside."""

    def __init__(self, number: int, processes: int, seed: int, home: Home) -> None:
        self.number, self.home = number, home
        self.serves = number < HOMES
        self.descriptors: list[list[str]] = []
        words = [str(number), str(processes), str(seed), str(home.root), *(["--serve"] if self.serves else [])]
        with (home.root.parent / f"errors-{number}").open("a") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.soak_node", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.address = str(self.answer()["address"])

    def ask(self, *words: object) -> None:
        print(*words, file=_open(self._process.stdin), flush=True)

    def answer(self) -> dict[str, Any]:
        line = _open(self._process.stdout).readline()
        if not line:
            raise RuntimeError(f"process {self.number} ended by itself")
        return dict(json.loads(line))

    def stop(self) -> None:
        self._process.communicate(timeout=60)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


def _open(pipe: IO[str] | None) -> IO[str]:
    if pipe is None:
        raise RuntimeError("no pipe")
    return pipe


class Soak:
    """Runs it; what is wrong is collected in `problems`."""

    def __init__(self, root: Path, processes: int, seed: int) -> None:
        self._rng, self._count = random.Random(seed), processes
        self.problems: list[str] = []
        self.done: Counter[str] = Counter()
        self.killed = 0
        self.descriptors: dict[str, list[int]] = {}
        self._homes = [Home(root / name) for name in ("a", "b")]
        keys = []
        for home in self._homes:
            home.create()
            keys.append(NodeKeys.create(home))
        self.processes = [self._process(number) for number in range(processes)]
        for number, home in enumerate(self._homes):
            other = 1 - number
            TrustList(home, keys[number].signer.public).add("signer", SIGNER.public)
            TrustList(home, keys[number].signer.public).add("other", keys[other].signer.public)
            addresses = (self.processes[other].address,)
            PeerBook(home).add(Peer("other", keys[other].peer.public, addresses, ("get", "push")))

    def _process(self, number: int) -> Process:
        return Process(number, self._count, self._rng.randrange(2**32), self._homes[number % HOMES])

    def phase(self, seconds: float, kills: int) -> None:
        end = time.monotonic() + seconds
        for process in self.processes:
            process.ask("work", seconds)
        for _ in range(kills):
            time.sleep(self._rng.random() * seconds / kills * 0.8)
            numbers = [process.number for process in self.processes if not process.serves]
            if numbers:
                number = self._rng.choice(numbers)
                self.processes[number].kill()
                self.killed += 1
                self.processes[number] = self._process(number)
                self.processes[number].ask("work", max(0.0, end - time.monotonic()))
        for process in self.processes:
            said = process.answer()
            self.problems += [f"process {process.number}: {problem}" for problem in said["problems"]]
            self.done.update(said["done"])
        for process in self.processes:
            process.ask("rest")
        for process in self.processes:
            process.descriptors.append(process.answer()["descriptors"])
        self.problems += [f"{home.root.name}: {problem}" for home in self._homes for problem in _at_rest(home)]

    def end(self) -> None:
        for process in self.processes:
            process.stop()
            self.descriptors[str(process.number)] = [len(each) for each in process.descriptors]
            first, last = process.descriptors[0], process.descriptors[-1]
            if len(last) > len(first):
                more = Counter(last) - Counter(first)
                self.problems.append(f"process {process.number} ends with more descriptors: {dict(more)}")
        for home in self._homes:
            problems = store_problems(home.store_dir, LIMITS)
            time.sleep(LIMITS.draft_ttl_s)
            with Store.open(home.store_dir, LIMITS) as store:
                store.gc()
                usage = store.usage()
            if usage.drafts or usage.leases:
                problems.append(f"{usage.drafts} drafts and {usage.leases} leases are left")
            names = ("tmp", "partial", "compute", "quarantine")
            problems += [f"{path} is left" for name in names for path in (home.store_dir / name).iterdir()]
            problems += store_problems(home.store_dir, LIMITS)
            self.problems += [f"{home.root.name}: {problem}" for problem in problems]

    def kill(self) -> None:
        for process in self.processes:
            process.kill()


def _at_rest(home: Home) -> list[str]:
    """No draft is open, so nothing is reserved; the quota is kept."""
    with Store.open(home.store_dir, LIMITS) as store:
        usage = store.usage()
        found = []
        if usage.reserved_bytes:
            found.append(f"{usage.reserved_bytes} bytes are reserved for nobody")
        if usage.bytes > LIMITS.quota_bytes + DESCRIPTIONS:
            found.append(f"{usage.bytes} bytes are over the quota")
        return found


def measure(root: Path, seconds: float, processes: int, seed: int, kills: int) -> dict[str, Any]:
    soak = Soak(root, processes, seed)
    try:
        warm_up = min(WARM_UP_S, seconds / 4)
        soak.phase(warm_up, 0)
        for _ in range(PHASES - 1):
            soak.phase((seconds - warm_up) / (PHASES - 1), kills)
        soak.end()
    finally:
        soak.kill()
    return {
        "seconds": seconds,
        "processes": processes,
        "seed": seed,
        "killed": soak.killed,
        "operations": sum(count for name, count in soak.done.items() if not name.startswith("verified")),
        "verified": {name: count for name, count in sorted(soak.done.items()) if name.startswith("verified")},
        "done": dict(sorted(soak.done.items())),
        "descriptors": soak.descriptors,
        "problems": soak.problems,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=1, help="in each phase but the first")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kvsync-soak-", dir=options.directory))
    try:
        result = measure(root, 60 * options.minutes, options.processes, options.seed, options.kills)
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps(result))
    else:
        for name, count in result["done"].items():
            print(f"{count:8} {name}")
        print(f"{result['operations']} operations, {result['killed']} processes killed")
        print(f"descriptors at each rest: {result['descriptors']}")
        print("\n".join(result["problems"]) or "no problem")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
