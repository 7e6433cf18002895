"""50 of 50: grafts against fresh computations, byte for byte, on real models.

    python benchmarks/exactness.py --model smollm2-135m --dtype F32 --samples 50

Runs the experiment of `kvsync prove` (docs/evidence/README.md says what it does) for several models, dtypes and
implementations of attention, one after the other, and counts. With --out the receipts are kept, signed by a key
made for this program; those that somebody answers for are made by `kvsync prove`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path

from kvsync.evidence.configuration import Configuration
from kvsync.evidence.prove import prove
from kvsync.models import list_models, resolve
from kvsync_protocol.layout import DType
from kvsync_protocol.receipt import Receipt
from kvsync_protocol.signing import SigningKey

KEY = SigningKey(hashlib.sha256(b"kvsync exactness benchmark").digest())


def run(model: str, dtype: str, attention: str, options: argparse.Namespace) -> dict[str, object]:
    started = time.perf_counter()
    configuration = Configuration(
        model=Path(model).name,
        model_dir=resolve(model).absolute(),
        dtype=dtype,
        attention=attention,
        threads=options.threads,
        samples=options.samples,
        seed=options.seed,
    )
    receipt = prove(configuration, KEY, reference_samples=options.references, progress=say)
    if options.out is not None:
        keep(receipt, options.out / f"{Path(model).name}-{dtype}-{attention}.receipt")
    sys.stderr.write("\r\033[K")
    seconds = round(time.perf_counter() - started, 1)
    return {"model": model, "dtype": dtype, "attention": attention, "seconds": seconds, **receipt.header.summary}


def keep(receipt: Receipt, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(receipt.encode())


def say(stage: str, done: int, total: int, unit: str) -> None:
    sys.stderr.write(f"\r\033[K{stage}: {done} of {total} {unit}")
    sys.stderr.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="default: every model that was fetched; may be repeated")
    parser.add_argument(
        "--dtype", action="append", choices=[dtype.value for dtype in DType], help="default: F32, BF16"
    )
    parser.add_argument("--attention", action="append", choices=("auto", "sdpa", "eager"), help="default: auto")
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--references", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    models = options.model or [entry.name for entry in list_models() if entry.fetched]
    if not models:
        raise SystemExit("no model is here: kvsync model fetch smollm2-135m")
    runs = [
        run(model, dtype, attention, options)
        for model in models
        for dtype in options.dtype or ["F32", "BF16"]
        for attention in options.attention or ["auto"]
    ]
    exact = all(each["exact"] for each in runs)
    if options.json:
        print(json.dumps({"exact": exact, "seed": options.seed, "runs": runs}))
    else:
        for each in runs:
            counts = "   ".join(f"{name} {path['equal']}/{each['samples']}" for name, path in each["paths"].items())
            print(f"{each['model']:<14} {each['dtype']:<5} {each['attention']:<6} {counts}   {each['seconds']} s")
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
