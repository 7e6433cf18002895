"""What an audit finds, and how it is divided: figures for `kvsync audit`.

catch   tiny random model, N seeds: one mantissa bit of one value of one block flipped, digests, tree and signature
        made consistent by a forger with a key; found by all blocks, found at the right block, found by 3 blocks
        drawn by chance (expected: hypergeometric over the blocks that differ); then the same with every later
        block computed honestly from the corrupt state, where only one block can show it
scale   a real model: wall time of every share i/n against 1/n of a full audit, in one run

python benchmarks/audit.py --json
python benchmarks/audit.py --model smollm2-135m --tokens 4096 --shares 2 --shares 4
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.forger import consistent, flip
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.evidence.audit import audit
from kvsync.evidence.recompute import recompute
from kvsync.evidence.selection import Selection
from kvsync.graft import deposit
from kvsync.models import resolve
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.layout import DType
from kvsync_protocol.signing import SigningKey

SIGNER, FORGER, AUDITOR = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
BLOCK, BLOCKS, DRAWN = 16, 14, 3


def tiny_model(folder: Path) -> Path:
    """A random Llama of two layers and 100 words."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))  # noqa: S106
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)  # noqa: S106
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def catch(engine: Engine, store: Store, seeds: int, *, honest_continuation: bool) -> dict[str, Any]:
    """Forge and audit once per seed; every artifact is another document."""
    found = at = by_chance = 0
    expected = []
    for seed in range(seeds):
        rng = random.Random(seed)
        tokens = [rng.randrange(100) for _ in range((BLOCKS - 1) * BLOCK + rng.randrange(1, BLOCK + 1))]
        stored = deposit(store, engine, SIGNER, tokens)
        block = rng.randrange(BLOCKS)
        if honest_continuation:
            forged = consistent(store, engine, stored, FORGER, block, rng)
        else:
            forged = flip(store, stored, FORGER, block, rng)
        drawn = audit(store, engine, AUDITOR, forged.artifact, Selection(DRAWN, seed=seed))
        by_chance += not drawn.passed
        report = audit(store, engine, AUDITOR, forged.artifact)
        found += not report.passed
        at += report.first_wrong == block
        wrong = {min(w.block, BLOCKS - 1) for w in report.wrong}
        if honest_continuation:
            at -= wrong != {block}
        expected.append(1 - comb(BLOCKS - len(wrong), DRAWN) / comb(BLOCKS, DRAWN))
        for artifact in (forged.artifact, stored.artifact):
            store.remove(artifact)
        say(f"\r{'consistent forgery' if honest_continuation else 'one flipped bit'} {seed + 1}/{seeds}")
    store.gc()
    say("\r\033[K")
    return {
        "seeds": seeds,
        "blocks": BLOCKS,
        "found_by_all_blocks": found,
        "found_exactly_where_it_begins": at,
        "blocks_drawn": DRAWN,
        "found_by_drawn_blocks": by_chance,
        "expected_by_drawn_blocks": round(sum(expected), 2),
        "deviations": round(_deviations(by_chance, expected), 2),
    }


def _deviations(found: int, expected: list[float]) -> float:
    """How many standard deviations the count lies from what is expected."""
    spread = sum(p * (1 - p) for p in expected) ** 0.5
    return abs(found - sum(expected)) / spread if spread else 0.0


@dataclass(frozen=True, slots=True)
class Time:
    """Seconds by the clock, and of the processor: on a machine with other work the latter says more."""

    wall: float
    cpu: float

    def over(self, whole: Time, parts: int) -> dict[str, float]:
        """How many times 1/parts of `whole` this is."""
        return {"wall": round(self.wall * parts / whole.wall, 3), "cpu": round(self.cpu * parts / whole.cpu, 3)}


def timed(engine: Engine, store: Store, stored: StoredArtifact, selection: Selection, runs: int) -> Time:
    """Median seconds of recomputing the selected blocks, everything read anew."""
    blocks, times = selection.blocks(stored.manifest.layout), []
    for _ in range(runs):
        wall, cpu = time.perf_counter(), time.process_time()
        if recompute(engine, store, stored, blocks).wrong:
            raise SystemExit("an honest artifact failed its audit")
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return Time(*(statistics.median(column) for column in zip(*times, strict=True)))


def scale(engine: Engine, store: Store, tokens: int, shares: list[int], runs: int) -> dict[str, Any]:
    """Times of all shares, each against 1/n of the full audit beside it."""
    rng = random.Random(0)
    ids = [rng.randrange(engine.vocab) for _ in range(tokens)]
    stored = deposit(store, engine, SIGNER, ids)
    timed(engine, store, stored, Selection(1, seed=0), 1)  # warm
    found = []
    for total in shares:
        full = timed(engine, store, stored, Selection(), runs)
        parts = []
        for number in range(1, total + 1):
            parts.append(timed(engine, store, stored, Selection(share=(number, total)), runs))
            say(f"\rshare {number}/{total} {parts[-1].wall:.2f} s")
        again = timed(engine, store, stored, Selection(), runs)
        whole = Time((full.wall + again.wall) / 2, (full.cpu + again.cpu) / 2)  # the machine's pace before and after
        ratios = [part.over(whole, total) for part in parts]
        found.append(
            {
                "shares": total,
                "full_s": round(whole.wall, 3),
                "share_s": [round(part.wall, 3) for part in parts],
                "times_1_over_n": ratios,
                "within_20_percent": all(abs(ratio["wall"] - 1) <= 0.2 for ratio in ratios),
            }
        )
    say("\r\033[K")
    return {"tokens": tokens, "blocks": stored.manifest.layout.blocks, "bytes": stored.bytes, "by_shares": found}


def say(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--model", default="smollm2-135m", help="for the scaling; '' leaves it out")
    parser.add_argument("--dtype", choices=[dtype.value for dtype in DType], default="F32")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--shares", type=int, action="append", help="default: 2 and 4; may be repeated")
    parser.add_argument("--runs", type=int, default=1, help="times of which the median is taken")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="kvsync-audit-") as folder:
        root = Path(folder)
        tiny = load_engine(tiny_model(root / "model"), threads=1, block_tokens=BLOCK)
        for name, honest in (("one_flipped_bit", False), ("consistent_forgery", True)):
            with Store.open(root / name) as store:
                result[name] = catch(tiny, store, options.seeds, honest_continuation=honest)
        if options.model:
            engine = load_engine(resolve(options.model), dtype=DType(options.dtype), threads=options.threads)
            with Store.open(root / "real") as store:
                measured = scale(engine, store, options.tokens, options.shares or [2, 4], options.runs)
            result["scaling"] = {"model": options.model, "dtype": options.dtype, **measured}
    held = all(
        result[name]["found_by_all_blocks"] == result[name]["found_exactly_where_it_begins"] == options.seeds
        and result[name]["deviations"] < 3
        for name in ("one_flipped_bit", "consistent_forgery")
    )
    result["held"] = held and all(row["within_20_percent"] for row in result.get("scaling", {}).get("by_shares", []))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if result["held"] else 1


def show(result: dict[str, Any]) -> None:
    for name in ("one_flipped_bit", "consistent_forgery"):
        row, title = result[name], name.replace("_", " ")
        print(
            f"{title:<20} found by all blocks {row['found_by_all_blocks']} of {row['seeds']}, exactly"
            f" where it begins {row['found_exactly_where_it_begins']}; by {row['blocks_drawn']} of {row['blocks']}"
            f" blocks {row['found_by_drawn_blocks']}, expected {row['expected_by_drawn_blocks']}"
        )
    for row in result.get("scaling", {}).get("by_shares", []):
        ratios = ", ".join(f"{ratio['wall']:.2f} ({ratio['cpu']:.2f} cpu)" for ratio in row["times_1_over_n"])
        print(
            f"{result['scaling']['model']}: {result['scaling']['blocks']} blocks, full audit {row['full_s']} s;"
            f" {row['shares']} shares take {ratios} times 1/{row['shares']} of it"
        )


if __name__ == "__main__":
    sys.exit(main())
