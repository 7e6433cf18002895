"""What computing costs beside reading a prompt in one go: the schedule's cuts, and capturing every block to a store.

    one shot    one forward call over all tokens, as an engine without kvsync makes it
    schedule    the canonical calls of 256 tokens, nothing kept but the cache
    compute     the same, and every block hashed and durable in a store in /dev/shm, signed and published

    python -m benchmarks.capture [--model smollm2-135m] [--dtype F32] [--tokens 2048 4096] [--rounds 5] [--json]

In turns, in an order that alternates; ratios are medians of those of each round. CPU time stands beside wall time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.graft import repeated
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.graft import deposit
from kvsync.models import resolve
from kvsync.store import Store
from kvsync_protocol.layout import DType
from kvsync_protocol.signing import SigningKey


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and CPU seconds."""
    cpu, started = time.process_time(), time.perf_counter()
    work()
    return time.perf_counter() - started, time.process_time() - cpu


def compute(engine: Engine, folder: Path, tokens: list[int]) -> None:
    """Into an empty store, which goes away afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as root, Store.open(Path(root)) as store:
        deposit(store, engine, SigningKey.generate(), tokens)


def measure(engine: Engine, folder: Path, count: int, rounds: int) -> dict[str, object]:
    tokens = repeated(engine, count)
    ways: dict[str, Callable[[], object]] = {
        "one_shot": lambda: engine.one_shot(tokens),
        "schedule": lambda: engine.prefill(engine.new_context(), tokens, engine.schedule),
        "compute": lambda: compute(engine, folder, tokens),
    }
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for way in ways.values():
        timed(way)  # caches, pools
    for number in range(rounds):
        for name in list(ways)[:: -1 if number % 2 else 1]:
            seen[name].append(timed(ways[name]))

    def ratio(of: str, to: str, column: int) -> float:
        pairs = zip(seen[of], seen[to], strict=True)
        return round(statistics.median(a[column] / b[column] for a, b in pairs), 3)

    return {
        "tokens": count,
        **{
            name: {
                "tokens_per_s": round(count / statistics.median(wall for wall, _ in rows)),
                "cpu_s": round(statistics.median(cpu for _, cpu in rows), 2),
            }
            for name, rows in seen.items()
        },
        "schedule_to_one_shot": ratio("schedule", "one_shot", 0),
        "schedule_to_one_shot_cpu": ratio("schedule", "one_shot", 1),
        "compute_to_schedule": ratio("compute", "schedule", 0),
        "compute_to_schedule_cpu": ratio("compute", "schedule", 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="F32", choices=[dtype.value for dtype in DType])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("/dev/shm"))  # noqa: S108
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = load_engine(
        resolve(options.model), dtype=DType(options.dtype), device=options.device, threads=options.threads
    )
    found = [measure(engine, options.store, count, options.rounds) for count in options.tokens]
    result = {"model": options.model, "dtype": options.dtype, "device": options.device, "runs": found}
    if options.json:
        print(json.dumps(result))
        return 0
    for run in found:
        print(f"{options.model} {options.dtype}, {run['tokens']} tokens; times as ratios of wall (CPU)")
        for name in ("one_shot", "schedule", "compute"):
            print(f"  {name:>10}  {run[name]['tokens_per_s']} tokens/s, {run[name]['cpu_s']} CPU s")
        print(f"  schedule / one shot  {run['schedule_to_one_shot']} ({run['schedule_to_one_shot_cpu']})")
        print(f"  compute / schedule   {run['compute_to_schedule']} ({run['compute_to_schedule_cpu']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
