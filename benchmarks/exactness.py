"""50 of 50: grafts against fresh computations, byte for byte, on real models.

    python benchmarks/exactness.py --model smollm2-135m --dtype F32 --pairs 50

For each pair one process computes the document's artifact and, in a context that starts empty, the canonical
fresh reference. A second process, which has never computed a document, then verifies and restores every
artifact from the store and computes the continuation; it serves all pairs of one model and dtype. Compared are
SHA-256 of all logits of every new position and of 32 greedy decode steps.

Pairs are drawn from a seed: whole grafts and prefix grafts, documents shorter than a block, of whole blocks, of
neither, and beyond twice Gemma's window of 512; continuations of one token, of a few, and of several blocks.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from kvsync.demo.run import specification
from kvsync.engines import load_engine
from kvsync.engines.engine import Context, Engine
from kvsync.graft import deposit
from kvsync.models import list_models, resolve
from kvsync.pack import ArtifactReader
from kvsync.store import Store
from kvsync_protocol.layout import DType
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.prefix import tokens_digest
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

KEY = SigningKey(hashlib.sha256(b"kvsync exactness benchmark").digest())
STEPS = 32
BLOCK = 256
WHOLE, PREFIX = "whole", "prefix"
TEXT = "text.md"


@dataclass(frozen=True, slots=True)
class Pair:
    """Tokens are slices of one text, so a few numbers say all. A prefix pair shares `shared` tokens."""

    mode: str
    document_start: int
    document: int
    shared: int
    new_start: int
    new: int


def lengths(rng: random.Random) -> Iterator[int]:
    """Document lengths, one kind after the other."""
    while True:
        yield rng.randrange(2, BLOCK)
        yield BLOCK * rng.randrange(1, 4)
        yield rng.randrange(BLOCK + 1, 2 * BLOCK)
        yield BLOCK * rng.randrange(2, 4) + rng.randrange(1, BLOCK)
        yield rng.randrange(1025, 1400)


def pairs(count: int, seed: int) -> list[Pair]:
    """The pairs of a seed. Each document of two blocks or more also serves a prefix pair."""
    rng = random.Random(seed)
    found: list[Pair] = []
    new = (
        n
        for _ in iter(int, 1)
        for n in (1, rng.randrange(2, 17), rng.randrange(17, 80), 2 * BLOCK + rng.randrange(60))
    )
    for length in lengths(rng):
        start = rng.randrange(2000)
        found.append(Pair(WHOLE, start, length, length, rng.randrange(4000, 5000), next(new)))
        if length > BLOCK:
            shared = BLOCK * rng.randrange(1, (length - 1) // BLOCK + 1)
            found.append(Pair(PREFIX, start, length, shared, rng.randrange(4000, 5000), next(new)))
        if len(found) >= count:
            return found[:count]
    raise AssertionError


def text_tokens(engine: Engine, text: Path) -> list[int]:
    """Enough tokens of one text, of which a run keeps a copy: both sides must read the same."""
    tokens = engine.encode(text.read_text("utf-8"))
    return (tokens * (6000 // len(tokens) + 1))[:6000]


def parts(tokens: list[int], pair: Pair) -> tuple[list[int], list[int]]:
    """The document, and what follows the shared part."""
    document = tokens[pair.document_start : pair.document_start + pair.document]
    return document, tokens[pair.new_start : pair.new_start + pair.new]


def schedule_of(engine: Engine, pair: Pair) -> Schedule:
    """Whole: with the cut at the document's end. Prefix: the caller's own cuts, none of the document's."""
    return engine.schedule.with_boundary(pair.document) if pair.mode == WHOLE else engine.schedule


def carry_on(engine: Engine, context: Context, new: list[int], schedule: Schedule) -> dict[str, str]:
    logits = engine.extend(context, new, schedule)
    _, decoded = engine.decode_greedy(context, logits, STEPS)
    return {"logits": logits.sha256().hex, "decode": decoded.sha256().hex}


def fresh_side(engine: Engine, store: Store, pair: Pair, tokens: list[int]) -> dict[str, str]:
    """Compute and store the artifact, then the reference from nothing."""
    document, new = parts(tokens, pair)
    artifact = deposit(store, engine, KEY, document).artifact
    context, schedule = engine.new_context(), schedule_of(engine, pair)
    engine.prefill(context, document[: pair.shared], schedule)
    return {
        "artifact": artifact.hex,
        "input": input_digest(document, new, pair),
        **carry_on(engine, context, new, schedule),
    }


def input_digest(document: list[int], new: list[int], pair: Pair) -> str:
    return tokens_digest([*document[: pair.shared], *new]).hex


def graft_side(engine: Engine, store: Store, pair: Pair, tokens: list[int], artifact: str) -> dict[str, str]:
    """Verify everything, restore, and compute the new tokens only."""
    document, new = parts(tokens, pair)
    stored = store.artifact(store.resolve(artifact))
    manifest = Manifest.parse(stored.envelope.verify(PAYLOAD_TYPE, [KEY.public]))
    engine.fingerprints.check(manifest.fingerprints)
    assert stored.tokens() == tuple(document), "another document"
    reader = ArtifactReader(store, stored.artifact, manifest.layout, stored.leaves())
    context = engine.restore(reader, pair.shared)
    found = carry_on(engine, context, new, schedule_of(engine, pair))
    return {"input": input_digest(document, new, pair), **found}


def child(side: str, options: argparse.Namespace) -> int:
    """One side of all pairs; results as JSON lines in order. The graft's side reads artifact ids from stdin."""
    started = time.perf_counter()
    engine = load_engine(resolve(options.model[0]), dtype=DType(options.dtype[0]), threads=options.threads)
    tokens = text_tokens(engine, options.store.with_name(TEXT))
    with Store.open(options.store) as store:
        for pair in pairs(options.pairs, options.seed):
            if side == "fresh":
                found = fresh_side(engine, store, pair, tokens)
            else:
                found = graft_side(engine, store, pair, tokens, sys.stdin.readline().strip())
            print(json.dumps({**found, "seconds": round(time.perf_counter() - started, 1)}), flush=True)
    return 0


def run_side(side: str, model: str, dtype: str, options: argparse.Namespace, store: Path, given: str) -> list[dict]:
    command = [sys.executable, __file__, "--side", side, "--model", model, "--dtype", dtype, "--store", str(store)]
    command += ["--pairs", str(options.pairs), "--seed", str(options.seed), "--threads", str(options.threads)]
    found: list[dict] = []
    # Threads that wait by spinning take the cores from each other on a busy machine; results do not depend on it.
    waiting = {"OMP_WAIT_POLICY": "passive", **os.environ}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=waiting) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(given)
        process.stdin.close()
        for line in process.stdout:
            found.append(json.loads(line))
            say(f"\r{model} {dtype} {side} {len(found)}/{options.pairs}")
    if process.returncode or len(found) != options.pairs:
        raise SystemExit(f"\nthe {side} side of {model} {dtype} ended after {len(found)} pairs")
    return found


def compare(model: str, dtype: str, options: argparse.Namespace) -> dict[str, object]:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="kvsync-exactness-") as folder:
        store = Path(folder) / "store"
        store.with_name(TEXT).write_bytes(specification().read_bytes())
        fresh = run_side("fresh", model, dtype, options, store, "")
        graft = run_side("graft", model, dtype, options, store, "".join(f"{side['artifact']}\n" for side in fresh))
    rows = []
    for pair, ours, theirs in zip(pairs(options.pairs, options.seed), fresh, graft, strict=True):
        if ours["input"] != theirs["input"]:
            raise SystemExit(f"\nthe two sides of {model} {dtype} were given different tokens")
        equal = all(ours[name] == theirs[name] for name in ("logits", "decode"))
        digests = {f"{name}_sha256": {"fresh": ours[name], "graft": theirs[name]} for name in ("logits", "decode")}
        rows.append({**asdict(pair), "input_sha256": ours["input"], **digests, "equal": equal})
    say("\r\033[K")
    return {
        "model": model,
        "dtype": dtype,
        "pairs": len(rows),
        "equal": sum(row["equal"] for row in rows),
        WHOLE: tally(row["equal"] for row in rows if row["mode"] == WHOLE),
        PREFIX: tally(row["equal"] for row in rows if row["mode"] == PREFIX),
        "seconds": round(time.perf_counter() - started, 1),
        "rows": rows,
    }


def tally(outcomes: Iterable[bool]) -> str:
    found = list(outcomes)
    return f"{sum(found)}/{len(found)}"


def say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="default: every model that was fetched; may be repeated")
    parser.add_argument(
        "--dtype", action="append", choices=[dtype.value for dtype in DType], help="default: F32, BF16"
    )
    parser.add_argument("--pairs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--side", choices=("fresh", "graft"), help=argparse.SUPPRESS)
    parser.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        return child(options.side, options)
    models = options.model or [entry.name for entry in list_models() if entry.fetched]
    if not models:
        raise SystemExit("no model is here: kvsync model fetch smollm2-135m")
    runs = [compare(model, dtype, options) for model in models for dtype in options.dtype or ["F32", "BF16"]]
    exact = all(run["equal"] == run["pairs"] for run in runs)
    if options.json:
        print(json.dumps({"exact": exact, "seed": options.seed, "decode_steps": STEPS, "runs": runs}))
    else:
        for run in runs:
            print(
                f"{run['model']:<14} {run['dtype']:<5} equal {run['equal']} of {run['pairs']}"
                f"   whole {run[WHOLE]}   prefix {run[PREFIX]}   {run['seconds']} s"
            )
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
