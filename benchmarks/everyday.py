"""What one waits for every day: help, a list of many artifacts, a daemon that starts, and one that has nothing to do.

    python -m benchmarks.everyday [--artifacts 10000] [--rounds 7] [--idle-s 60] [--json]

Every command runs as users run it, with Python's compiled modules (`--compiled` names a folder for them, filled by a
first run). Wall time says little on a machine with other work, so CPU time stands beside it, and both as a ratio
to `python -c pass` in the same rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tiny import fill
from kvsync.config import Home
from kvsync.keys import NodeKeys

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Bench:
    """Where things lie, and how commands run."""

    folder: Path
    environment: dict[str, str]

    def home(self, name: str) -> Path:
        return self.folder / name

    def run(self, *words: str) -> tuple[float, float, str]:
        """Wall and CPU seconds of one process and those it waited for, and what it printed."""
        before, started = os.times(), time.perf_counter()
        done = subprocess.run(words, env=self.environment, capture_output=True, check=True, text=True)
        wall, after = time.perf_counter() - started, os.times()
        cpu = after.children_user - before.children_user + after.children_system - before.children_system
        return wall, cpu, done.stdout

    def kvsync(self, home: str, *words: str) -> tuple[float, float, str]:
        program = "import sys; from kvsync.cli import main; sys.exit(main())"
        return self.run(sys.executable, "-P", "-c", program, "--home", str(self.home(home)), *words)


def commands(bench: Bench, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of commands in turns."""
    tasks = {
        "python -c pass": lambda: bench.run(sys.executable, "-P", "-c", "pass"),
        "kvsync --help": lambda: bench.kvsync("many", "--help"),
        "kvsync ls": lambda: bench.kvsync("many", "ls"),
        "kvsync ls --json": lambda: bench.kvsync("many", "ls", "--json"),
        "kvsync ls, no artifacts": lambda: bench.kvsync("none", "ls"),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    for number in range(rounds + 1):
        for name, task in tasks.items():
            wall, cpu, _ = task()
            if number:  # the first fills caches
                times[name].append((wall, cpu))
    medians = {
        name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in times.items()
    }
    base = medians["python -c pass"]
    return {
        name: {
            "wall_s": round(wall, 4),
            "cpu_s": round(cpu, 4),
            "wall_ratio": round(wall / base[0], 1),
            "cpu_ratio": round(cpu / base[1], 1),
        }
        for name, (wall, cpu) in medians.items()
    }


def daemon(bench: Bench, home: str, rounds: int, idle_s: float) -> dict[str, float]:
    """How long until ready, its CPU time by then, and what share of one core it takes when nothing happens."""
    ready, spent = [], []
    try:
        for number in range(rounds + 1):
            if number:
                bench.kvsync(home, "daemon", "stop")
            wall, cpu, said = bench.kvsync(home, "daemon", "start", "--json")
            pid = int(json.loads(said)["pid"])
            if number:
                ready.append(wall)
                spent.append(cpu + _cpu(pid))
        _settle(pid)
        before, switches, started = _cpu(pid), _switches(pid), time.perf_counter()
        time.sleep(idle_s)
        passed = time.perf_counter() - started
        return {
            "ready_s": round(statistics.median(ready), 3),
            "ready_cpu_s": round(statistics.median(spent), 3),
            "idle_percent": round(100 * (_cpu(pid) - before) / passed, 2),
            "idle_wakeups_per_s": round((_switches(pid) - switches) / passed, 1),
        }
    finally:
        bench.kvsync(home, "daemon", "stop")


def _settle(pid: int) -> None:
    """Wait until it has told its registry what it has: less than a twentieth of a core for 5 seconds."""
    while True:
        before = _cpu(pid)
        time.sleep(5)
        if _cpu(pid) - before < 0.25:
            return


def _cpu(pid: int) -> float:
    """Seconds of all threads of a process, from the scheduler's own count, in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def _switches(pid: int) -> int:
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        rows = (task / "status").read_text().splitlines()
        found += sum(int(row.split()[1]) for row in rows if row.startswith("voluntary_ctxt_switches"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifacts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--idle-s", type=float, default=60)
    parser.add_argument("--store", type=Path, default=Path("/dev/shm"))  # noqa: S108
    parser.add_argument("--compiled", type=Path, help="folder of compiled modules; default one of this run's own")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.store) as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PYTHONPYCACHEPREFIX"] = str(options.compiled or Path(folder) / "compiled")
        bench = Bench(Path(folder), environment)
        for home in ("none", "many"):
            bench.kvsync(home, "init")
        many = Home.locate(bench.home("many"))
        fill(many.store_dir, NodeKeys.load(many).signer, options.artifacts)
        found = {
            "artifacts": options.artifacts,
            "load": round(os.getloadavg()[0], 1),
            "commands": commands(bench, options.rounds),
            "daemon": {
                "no artifacts": daemon(bench, "none", options.rounds, options.idle_s),
                f"{options.artifacts} artifacts": daemon(bench, "many", options.rounds, options.idle_s),
            },
        }
    if options.json:
        print(json.dumps(found))
        return 0
    print(f"{options.artifacts} artifacts, load {found['load']}")
    for group in ("commands", "daemon"):
        for name, figures in found[group].items():
            print(f"{name:>26}  " + "  ".join(f"{figure} {value}" for figure, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
