"""How pull, graft, gc, fsck and ls grow with what is stored: ×1, ×10, ×100 in number and in size.

    python -m benchmarks.growth [--counts 100 1000 10000] [--mib 4 40 400] [--tokens 256 2560 25600]
                                [--rounds 3] [--json] [--plot docs/growth.png]

By number: a store of so many tiny artifacts and one of 4 MiB that is pulled, grafted or listed beside them. By size:
one artifact of so many MiB of random bytes; for grafts so many tokens of a small random model. Opening the
store is part of every time, as it is of every command. What is told is CPU time of this process, both nodes of a pull
together, since other work on a machine does not change it much; medians. Stores lie in /dev/shm.

`factor` is the time at the largest over that in the middle; linear growth is 10.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks import synthetic, tiny
from benchmarks.pair import LIMITS
from kvsync.config import Settings
from kvsync.engines import as_engine
from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError
from kvsync.evidence.node import Node
from kvsync.graft import deposit, graft
from kvsync.store import Store
from kvsync.sync import pull
from kvsync_protocol.digest import ArtifactId

Times = dict[str, list[float]]


def cpu(work: Callable[[], object], rounds: int, before: Callable[[], object] = lambda: None) -> float:
    """Median CPU seconds; `before` is not counted, nor is a first round, which fills caches."""
    found = []
    for _ in range(rounds + 1):
        before()
        started = time.process_time()
        work()
        found.append(time.process_time() - started)
    return statistics.median(found[1:])


def small_model() -> Any:
    """Two random layers and many positions: what a graft takes grows with bytes and files, not with arithmetic."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=65_536,
    )
    return LlamaForCausalLM(config).eval()


def opened(node: Node) -> Store:
    return Store.open(node.home.store_dir, LIMITS)


def upkeep(node: Node, rounds: int) -> dict[str, float]:
    """ls, gc and fsck of one node's store."""

    def ls() -> None:
        with opened(node) as store:
            store.listing(node.trust_list.keys())

    def gc() -> None:
        with opened(node) as store:
            store.gc()

    def fsck() -> None:
        with opened(node) as store:
            if not store.fsck().clean:
                raise RuntimeError("the store is damaged")

    return {"ls": cpu(ls, rounds), "gc": cpu(gc, rounds), "fsck": cpu(fsck, rounds)}


def pulled(provider: Node, getter: Node, artifact: ArtifactId, rounds: int) -> float:
    """A whole pull over loopback; the getter forgets the artifact before each."""

    def forget() -> None:
        with opened(getter) as store, suppress(NotFoundError):
            store.remove(artifact)
            store.gc()

    async def serve_and_pull() -> None:
        with opened(provider) as source, opened(getter) as target:
            async with provider.serving(source):
                provider.meet(getter, roles=("get",))
                getter.meet(provider)
                try:
                    await pull(
                        target,
                        getter.trust_list,
                        getter.peers.get(provider.name),
                        str(artifact),
                        keys=getter.keys,
                        settings=getter.settings,
                        fingerprints=None,
                    )
                finally:
                    provider.peers.remove(getter.name)
                    getter.peers.remove(provider.name)

    return cpu(lambda: asyncio.run(serve_and_pull()), rounds, forget)


def grafted(node: Node, engine: Engine, tokens: Sequence[int], rounds: int) -> float:
    """A graft of all these tokens, computed and stored before."""
    with opened(node) as store:
        deposit(store, engine, node.keys.signer, tokens)

    def work() -> None:
        with opened(node) as store:
            found = graft(store, node.trust_list.keys(), engine, [*tokens, 1], advance=False)
            if found.report.tokens_grafted != len(tokens):
                raise RuntimeError(f"nothing was grafted: {found.report}")

    return cpu(work, rounds)


def by_count(root: Path, engine: Engine, counts: Sequence[int], rounds: int) -> Times:
    times: Times = {}
    for count in counts:
        many, other = _pair(root / f"count-{count}")
        tiny.fill(many.home.store_dir, many.keys.signer, count)
        with opened(other) as store:
            arriving = synthetic.deposit(store, other.keys.signer, 4).artifact
        with opened(many) as store:
            leaving = synthetic.deposit(store, many.keys.signer, 4, seed=1).artifact
        found = {
            "pull into it": pulled(other, many, arriving, rounds),
            "pull from it": pulled(many, other, leaving, rounds),
            "graft": grafted(many, engine, [i * i % 256 for i in range(600)], rounds),
            **upkeep(many, rounds),
        }
        _add(times, found)
    return times


def by_size(root: Path, engine: Engine, mib: Sequence[int], tokens: Sequence[int], rounds: int) -> Times:
    times: Times = {}
    for size, count in zip(mib, tokens, strict=True):
        one, other = _pair(root / f"size-{size}")
        with opened(one) as store:
            artifact = synthetic.deposit(store, one.keys.signer, size).artifact
        found = {"pull": pulled(one, other, artifact, rounds), **upkeep(one, rounds)}
        third = Node("third", root / f"tokens-{count}", Settings(free_floor_bytes=0))
        found["graft"] = grafted(third, engine, [i * i % 256 for i in range(count)], rounds)
        _add(times, found)
    return times


def _pair(root: Path) -> tuple[Node, Node]:
    root.mkdir()
    one, other = (Node(name, root / name, Settings(free_floor_bytes=0)) for name in ("one", "other"))
    one.trust(other)
    other.trust(one)
    return one, other


def _add(times: Times, found: Mapping[str, float]) -> None:
    for name, seconds in found.items():
        times.setdefault(name, []).append(round(seconds, 4))


def factors(times: Times) -> dict[str, float]:
    """The last step of ten."""
    return {name: round(row[-1] / max(row[-2], 1e-4), 1) for name, row in times.items()}


def plot(result: Mapping[str, Any], path: Path) -> None:
    """Both families, logarithmic both ways, with the slope of linear growth behind them."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (name, label) in zip(
        drawn.subplots(1, 2),
        (("by_count", "artifacts in the store"), ("by_size", "MiB of one artifact")),
        strict=True,
    ):
        places, times = result[name]["places"], result[name]["cpu_s"]
        for operation, row in times.items():
            axes.plot(places, row, marker="o", label=operation)
        low = min(min(row) for row in times.values())
        axes.plot(places, [low * place / places[0] for place in places], "--", color="grey", label="linear")
        axes.set_xscale("log")
        axes.set_yscale("log")
        tokens = result[name].get("tokens")
        axes.set_xlabel(label if tokens is None else f"{label}; grafts of {tokens[0]} to {tokens[-1]} tokens")
        axes.set_ylabel("CPU seconds")
        axes.legend(fontsize="small")
    drawn.savefig(path, format="png", dpi=120, metadata={"Software": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--mib", type=int, nargs="+", default=[4, 40, 400])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 2560, 25_600])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--store", type=Path, default=Path("/dev/shm"))  # noqa: S108
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = as_engine(small_model(), threads=1)
    with tempfile.TemporaryDirectory(dir=options.store) as folder:
        counted = by_count(Path(folder), engine, options.counts, options.rounds)
        sized = by_size(Path(folder), engine, options.mib, options.tokens, options.rounds)
    result = {
        "by_count": {"places": options.counts, "cpu_s": counted, "factor": factors(counted)},
        "by_size": {"places": options.mib, "tokens": options.tokens, "cpu_s": sized, "factor": factors(sized)},
    }
    if options.plot:
        plot(result, options.plot)
    if options.json:
        print(json.dumps(result))
        return 0
    for name, part in result.items():
        print(name, part["places"])
        for operation, row in part["cpu_s"].items():
            print(
                f"{operation:>14}  {'  '.join(f'{s:8.4f} s' for s in row)}   last factor {part['factor'][operation]}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
