"""Time to first token: a whole graft, every check on, against canonical prefill; same process, same run.

    python benchmarks/graft.py --model smollm2-135m --dtype F32 --tokens 3000 --question-tokens 16

The document is the protocol's specification, repeated to the asked length. Fresh and grafted rounds
alternate; medians are reported, and the logits must be equal byte for byte in every round. Chunks lie in the
page cache (--store names the disk; /dev/shm by default). As a limit, SHA-256 and one copy of the same bytes on
the same cores are timed beside the restore.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from kvsync.demo.run import specification
from kvsync.engines import load_engine
from kvsync.engines.engine import Context, Engine
from kvsync.graft import deposit, graft
from kvsync.models import resolve
from kvsync.pack import VerifiedChunks
from kvsync.store import Store
from kvsync_protocol.layout import DType
from kvsync_protocol.limits import MAX_CHUNK_BYTES, GiB
from kvsync_protocol.signing import SigningKey


def repeated(engine: Engine, count: int) -> list[int]:
    """`count` tokens of the specification's text, from the start as often as needed."""
    text = engine.encode(specification().read_text("utf-8"))
    return (text * (count // len(text) + 1))[:count]


def hash_and_copy(size: int) -> float:
    """Seconds for SHA-256 and one copy of `size` bytes on all cores, in chunks of 4 MiB."""
    source = memoryview(bytearray(os.urandom(MAX_CHUNK_BYTES)))
    target = memoryview(bytearray(size))

    def chunk(offset: int) -> None:
        part = target[offset : offset + MAX_CHUNK_BYTES]
        part[:] = source[: part.nbytes]
        hashlib.sha256(part).digest()

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        started = time.perf_counter()
        list(pool.map(chunk, range(0, size, MAX_CHUNK_BYTES)))
        return time.perf_counter() - started


def saved(context: Context, path: Path) -> int:
    """What the layers of a cache keep, as `torch.save` writes it; the tensors' bytes."""
    tensors = [
        tensor.detach().cpu().contiguous().clone()
        for layer in context.cache.layers
        for tensor in (layer.keys, layer.values)
    ]
    torch.save(tensors, path)
    return sum(tensor.nbytes for tensor in tensors)


def load(path: Path) -> float:
    """Seconds of a bare `torch.load`, which verifies nothing."""
    started = time.perf_counter()
    torch.load(path, weights_only=True)
    return time.perf_counter() - started


def measure(
    engine: Engine,
    store: Store,
    folder: Path,
    key: SigningKey,
    tokens: Sequence[int],
    extra: int,
    rounds: int,
    verified: VerifiedChunks,
) -> dict:
    document, question = list(tokens[:-extra]), list(tokens[-extra:])
    schedule = engine.schedule.with_boundary(len(document))
    stored = deposit(store, engine, key, document)
    fresh, grafted, restores, limits, loads = [], [], [], [], []
    first = graft(store, [key.public], engine, tokens, advance=False, verified=verified)
    bare = folder / "cache.pt"
    bare_bytes = saved(first.context, bare)
    del first
    for _ in range(rounds):
        started = time.perf_counter()
        context = engine.new_context()
        engine.prefill(context, document, schedule)
        expected = engine.extend(context, question, schedule)
        expected.argmax()
        fresh.append(time.perf_counter() - started)
        del context

        started = time.perf_counter()
        found = graft(store, [key.public], engine, tokens, advance=False, verified=verified)
        logits = engine.extend(found.context, found.next_tokens, found.schedule)
        logits.argmax()
        grafted.append(time.perf_counter() - started)
        before = found.report.bytes_verified_before
        restores.append(found.report.seconds["restore"])
        assert found.report.tokens_grafted == len(document), found.report
        assert logits.sha256() == expected.sha256(), "the graft is not exact"
        del found
        limits.append(hash_and_copy(stored.bytes))
        loads.append(load(bare))
    size = stored.bytes
    return {
        "document_tokens": len(document),
        "question_tokens": len(question),
        "artifact_bytes": size,
        "bytes_verified_before": before,
        "ttft_fresh_s": round(statistics.median(fresh), 4),
        "ttft_graft_s": round(statistics.median(grafted), 4),
        "speedup": round(statistics.median(f / g for f, g in zip(fresh, grafted, strict=True)), 1),
        "restore_s": round(statistics.median(restores), 4),
        "restore_mb_s": round(size / statistics.median(restores) / 1e6),
        "hash_and_copy_mb_s": round(size / statistics.median(limits) / 1e6),
        "restore_over_limit": round(statistics.median(x / r for x, r in zip(limits, restores, strict=True)), 2),
        "torch_load_mb_s": round(bare_bytes / statistics.median(loads) / 1e6),
        "restore_over_torch_load": round(
            statistics.median(size / r / (bare_bytes / t) for r, t in zip(restores, loads, strict=True)), 2
        ),
        "exact": True,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="F32", choices=[dtype.value for dtype in DType])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=3000, help="length of the document")
    parser.add_argument("--question-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--store", type=Path, default=Path("/dev/shm"))  # noqa: S108
    parser.add_argument(
        "--verified",
        action="store_true",
        help="grafts after a first one in the same process, which take verified chunks from sealed memory",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    engine = load_engine(resolve(options.model), dtype=DType(options.dtype), device=options.device)
    tokens = repeated(engine, options.tokens + options.question_tokens)
    limit = 64 * GiB if options.verified else 0
    with (
        tempfile.TemporaryDirectory(dir=options.store) as folder,
        Store.open(Path(folder) / "store") as store,
        VerifiedChunks(limit) as verified,
    ):
        key = SigningKey.generate()
        found = measure(engine, store, Path(folder), key, tokens, options.question_tokens, options.rounds, verified)
    found = {"model": options.model, "dtype": options.dtype, "device": options.device, **found}
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:>20}  {value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
