"""SIGKILL of getter, provider and registry at seeded moments: does anything that was verified get lost?

    python -m benchmarks.crash [--json] [--seeds 100] [--first 0]

Each seed kills one of three real processes: at a moment of a transfer, or through strace as it enters its n-th write,
fsync, rename or unlink, counted from its start or from when it was at work. Afterwards its files are examined, it is
started again, and the transfer is made once more (crash_attempt.py). Needs strace.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.crash_attempt import Outcome, attempt
from benchmarks.crash_world import STREAMS, World


def measure(root: Path, seeds: Iterable[int]) -> dict[str, Any]:
    outcomes: list[Outcome] = []
    began = time.monotonic()
    with World(root) as world:
        for seed in seeds:
            outcomes.append(attempt(world, seed))
            for problem in outcomes[-1].problems:
                print(f"seed {seed}: {problem}", file=sys.stderr, flush=True)
    return {
        "kills": len(outcomes),
        "reached": sum(out.reached for out in outcomes),
        "streams": STREAMS,
        "chunks": len(world.kept.chunks),
        "seconds": round(time.monotonic() - began, 1),
        "with problems": sum(bool(out.problems) for out in outcomes),
        "table": table(outcomes),
        "outcomes": [asdict(out) for out in outcomes],
    }


def table(outcomes: list[Outcome]) -> list[dict[str, object]]:
    """A row for each victim, transfer and kind of moment."""
    rows: defaultdict[tuple[str, str, str], list[Outcome]] = defaultdict(list)
    for out in outcomes:
        rows[out.victim, out.action, out.kind].append(out)
    return [
        {
            "victim": victim,
            "during": action,
            "killed at": kind,
            "kills": len(row),
            "reached": sum(out.reached for out in row),
            "transfer survived": sum(out.getter == 0 for out in row),
            "most moved twice": max(out.refetched for out in row),
            "with problems": sum(bool(out.problems) for out in row),
        }
        for (victim, action, kind), row in sorted(rows.items())
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    options = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="kvsync-crash-", dir=options.directory))
    try:
        result = measure(root, range(options.first, options.first + options.seeds))
    finally:
        shutil.rmtree(root)
    if options.json:
        print(json.dumps(result))
    else:
        for row in [list(result["table"][0]), *(row.values() for row in result["table"])]:
            print("  ".join(f"{cell!s:<17}" for cell in row))
        print(f"{result['kills']} kills, {result['reached']} at the moment meant, in {result['seconds']} s:", end=" ")
        print(f"{result['with problems']} with problems")
    return 1 if result["with problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
