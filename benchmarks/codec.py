"""How small the codec makes real KV state and how fast, beside zstd, ZipNN and two bounds; one core.

    python -m benchmarks.codec [--json] [--model smollm2-135m] [--dtype BF16] [--tokens 2048] [--rounds 5] [--install]

Every chunk of the artifact but its logits goes through each tool in turn, encoding and decoding, round by round in
alternating order, all pinned to one core. Times are CPU seconds of the process, since ZipNN works in a thread of its
own; rates are of plain bytes. Each tool gets what it likes: kvsync chunks with their headers, ZipNN their numbers
alone. No engine here makes states of one byte a number: F8 is real BF16 state, rounded, and ZipNN has no such type.
The bounds are empirical entropies of the exponents, of each tensor and of each channel, plus the order-0
entropy of everything else; kvsync's figures count centres, lengths and headers.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard

from benchmarks import kv, rivals
from kvsync.pack.loading import LOADER
from kvsync.pack.planes import PlaneCoder
from kvsync.pack.shape import ChunkShape, Section, leaf_shape
from kvsync.pack.splitter import Splitter, Splitting
from kvsync.peer.chunk_file import ChunkFile
from kvsync.store import Store, StoredArtifact, StoreLimits
from kvsync_protocol.layout import LOGITS_GROUP
from kvsync_protocol.signing import SigningKey

ZIPNN_DTYPES: Final = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
NARROW: Final = ("F8_E4M3", "F8_E5M2")

Encoded = tuple[Any, ...]


class Planes:
    """Compiled, as in a process that has coded a GiB; with numpy alone, as before that and without numba."""

    def __init__(self, splitter: Splitting) -> None:
        self.name = "planes, " + ("numpy" if isinstance(splitter, Splitter) else "compiled")
        self._coder = PlaneCoder(splitter)
        self._out = bytearray(1 << 22)

    def prepare(self, data: bytes, shape: ChunkShape) -> Encoded:
        return memoryview(data), shape

    def encode(self, data: memoryview, shape: ChunkShape) -> Encoded:
        return self._coder.encode(data, shape), shape

    def decode(self, body: memoryview, shape: ChunkShape) -> memoryview:
        out = memoryview(self._out)[: shape.size]
        self._coder.decode(body, shape, out)
        return out

    def size(self, body: memoryview, _: ChunkShape) -> int:
        return len(body)


class Zstd:
    name = "zstd -1"

    def prepare(self, data: bytes, shape: ChunkShape) -> Encoded:
        return (data,)

    def encode(self, data: bytes) -> Encoded:
        return (zstandard.ZstdCompressor(level=1).compress(data),)

    def decode(self, body: bytes) -> bytes:
        return zstandard.ZstdDecompressor().decompress(body)

    def size(self, body: bytes) -> int:
        return len(body)


class Zipnn:
    name = "ZipNN"

    def __init__(self, dtype: str) -> None:
        import zipnn  # type: ignore[import-not-found]

        self._zipnn = zipnn.ZipNN(input_format="byte", bytearray_dtype=ZIPNN_DTYPES[dtype], threads=1)

    def prepare(self, data: bytes, shape: ChunkShape) -> Encoded:
        (section,) = shape.sections
        return (bytearray(data[section.start : section.stop]),)  # it works in place

    def encode(self, data: bytearray) -> Encoded:
        return (self._zipnn.compress(data),)

    def decode(self, body: bytes) -> bytearray:
        return self._zipnn.decompress(body)  # type: ignore[no-any-return]

    def size(self, body: bytes) -> int:
        return len(body)


def entropy(counts: np.ndarray) -> float:
    """Bits that a sequence with these counts of symbols takes at order 0."""
    seen = counts[counts > 0].astype(np.float64)
    return float(-(seen * np.log2(seen / seen.sum())).sum())


def bounds(chunks: list[tuple[bytes, ChunkShape]]) -> dict[str, float]:
    """Ratios if exponents took their order-0 entropy in each chunk, and in each channel of each segment."""
    plain, chunk_bits, channel_bits, other_bits = 0, 0.0, 0.0, 0.0
    for data, shape in chunks:
        (section,) = shape.sections
        words = np.frombuffer(data, "<u2", section.numbers * section.bytes_each // 2, section.start)
        plain += section.numbers * section.bytes_each
        upper = words if section.bytes_each == 2 else words[1::2]
        exponents = (upper >> 7 & 0xFF).astype(np.uint8)
        rest = (upper >> 8 & 0x80 | upper & 0x7F).astype(np.uint8)
        other_bits += entropy(np.bincount(rest, minlength=256))
        if section.bytes_each == 4:
            other_bits += sum(entropy(np.bincount(words[0::2] >> 8 * half & 0xFF)) for half in (0, 1))
        chunk_bits += entropy(np.bincount(exponents, minlength=256))
        for run in section.runs:
            part = exponents[run.first : run.first + run.numbers].reshape(run.segments, run.rows, run.width)
            for segment in part:
                channel = segment.astype(np.intp) + 256 * np.arange(run.width)
                counts = np.bincount(channel.ravel(), minlength=256 * run.width).reshape(run.width, 256)
                channel_bits += sum(entropy(row) for row in counts)
    return {
        "order 0": round(plain * 8 / (other_bits + chunk_bits), 3),
        "each channel": round(plain * 8 / (other_bits + channel_bits), 3),
    }


def timed(work: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    before = time.process_time()
    made = work(*given)
    return time.process_time() - before, made


def measure(chunks: list[tuple[bytes, ChunkShape]], tools: list[Any], rounds: int) -> dict[str, Any]:
    """Medians over rounds of whole passes; every result is compared with the original in every round."""
    seconds: dict[str, dict[str, list[float]]] = {tool.name: {"encode": [], "decode": []} for tool in tools}
    sizes = {tool.name: [0, 0] for tool in tools}
    for number in range(rounds + 1):  # the first warms up
        for tool in tools if number % 2 == 0 else tools[::-1]:
            spent = [0.0, 0.0]
            sizes[tool.name] = [0, 0]
            for data, shape in chunks:
                given = tool.prepare(data, shape)
                original = bytes(given[0])
                encoding, encoded = timed(tool.encode, *given)
                decoding, decoded = timed(tool.decode, *encoded)
                assert decoded == original, f"{tool.name} lost something"
                spent = [spent[0] + encoding, spent[1] + decoding]
                sizes[tool.name][0] += len(original)
                sizes[tool.name][1] += tool.size(*encoded)
            if number:
                seconds[tool.name]["encode"].append(spent[0])
                seconds[tool.name]["decode"].append(spent[1])
    return {
        name: {
            "ratio": round(sizes[name][0] / sizes[name][1], 4),
            **{
                f"{way}_gb_s": round(sizes[name][0] / statistics.median(found) / 1e9, 3)
                for way, found in both.items()
            },
        }
        for name, both in seconds.items()
    }


def kv_chunks(store: Store, stored: StoredArtifact) -> list[tuple[bytes, ChunkShape]]:
    """Every chunk but the logits', with its shape."""
    layout, leaves, found = stored.manifest.layout, stored.leaves().leaves, []
    for span in layout.chunks():
        if span.group != LOGITS_GROUP:
            with ChunkFile(store, leaves[span.index]) as chunk:
                data = bytes(chunk.whole(memoryview(bytearray(chunk.size))))
            found.append((data, leaf_shape(layout, span.index)))
    return found


def narrowed(chunks: list[tuple[bytes, ChunkShape]], dtype: str) -> list[tuple[bytes, ChunkShape]]:
    """Chunks of BF16, their numbers rounded to one byte each."""
    import torch

    kind, found = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2}[dtype], []
    for data, shape in chunks:
        (section,) = shape.sections
        numbers = torch.frombuffer(bytearray(data[section.start : section.stop]), dtype=torch.bfloat16).to(kind)
        one = Section(0, 1, section.numbers, section.runs)
        found.append((numbers.view(torch.uint8).numpy().tobytes(), ChunkShape(section.numbers, (one,))))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="BF16", choices=[*ZIPNN_DTYPES, *NARROW])
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--install", action="store_true", help="install ZipNN for this run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.install and args.dtype in ZIPNN_DTYPES:
        rivals.install("zipnn")
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        Store.open(Path(folder) / "store", StoreLimits(free_floor_bytes=0)) as store,
    ):
        narrow = args.dtype in NARROW
        engine = kv.engine_of(args.model, "BF16" if narrow else args.dtype)
        chunks = kv_chunks(store, kv.compute(store, SigningKey.generate(), engine, args.tokens))
    if narrow:
        chunks = narrowed(chunks, args.dtype)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    tools = [Planes(Splitter()), Zstd(), *([] if narrow else [Zipnn(args.dtype)])]
    if LOADER.load():
        from kvsync.pack.compiled import CompiledSplitter

        tools.insert(0, Planes(CompiledSplitter()))
    result = {
        "model": args.model,
        "dtype": args.dtype,
        "tokens": args.tokens,
        "bytes": sum(len(data) for data, _ in chunks),
        "bounds": {} if narrow else bounds(chunks),
        "tools": measure(chunks, tools, args.rounds),
    }
    if args.json:
        kv.write(result, None)
        return 0
    print(f"{args.model} {args.dtype}, {args.tokens} tokens, {result['bytes'] / 1e6:.1f} MB")
    for name, found in result["tools"].items():
        rates = f"in {found['encode_gb_s']:.2f} GB/s  out {found['decode_gb_s']:.2f} GB/s"
        print(f"{name:16} ratio {found['ratio']:.3f}  {rates}")
    for name, ratio in result["bounds"].items():
        print(f"bound, {name:16} {ratio:.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
