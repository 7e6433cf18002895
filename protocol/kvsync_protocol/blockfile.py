"""One file of an artifact: the keys and values of one group over one block, or its states there (SPEC 3.3).

    header, 128 bytes × (1 + tensors) ‖ first layer's key ‖ its value ‖ next layer's key ‖ …

A block file is a valid safetensors file whose header is determined byte for byte by the geometry: a
reader compares bytes and parses nothing, so there is no header that could lie about what follows. The
header's length depends on the number of tensors alone; sizes are arithmetic and cost no text.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from kvsync_protocol.group import DType, Group, header_size
from kvsync_protocol.state import StateGroup


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor of a block file, at byte `offset` of it: `[heads, tokens, dim]`, or a state of any shape."""

    name: str
    layer: int
    part: str  # "key" or "value", or a state's name; "logits" in the logits file
    shape: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BlockFile:
    """The exact shape of one file. `header` is its first bytes; the tensors follow without gaps."""

    header: bytes
    tensors: tuple[TensorSpan, ...]
    size: int


def block_file(group: Group, tokens: int) -> BlockFile:
    """The file that holds `tokens` consecutive tokens of `group`."""
    parts = [("key", group.key_dim), ("value", group.value_dim)]
    named = [
        (f"layers.{layer}.{part}", layer, part, (group.kv_heads, tokens, dim), group.dtype)
        for layer in group.layers
        for part, dim in parts
    ]
    return _file(named)


def state_file(group: StateGroup) -> BlockFile:
    """The file with one snapshot of `group`."""
    return _file(
        [
            (f"layers.{layer}.{part.name}", layer, part.name, part.shape, part.dtype)
            for layer in group.layers
            for part in group.parts
        ]
    )


def logits_file(vocab: int, dtype: DType) -> BlockFile:
    """The file that holds the final logits, `[1, 1, vocab]`."""
    return _file([("logits", 0, "logits", (1, 1, vocab), dtype)])


def logits_file_size(vocab: int, dtype: DType) -> int:
    """Bytes of the logits file."""
    return header_size(1) + vocab * dtype.size


def _file(named: Sequence[tuple[str, int, str, tuple[int, ...], DType]]) -> BlockFile:
    begin = at = header_size(len(named))
    described: dict[str, object] = {"__metadata__": {"format": "kvsync-block/1"}}
    tensors = []
    for name, layer, part, shape, dtype in named:
        size = prod(shape) * dtype.size
        described[name] = {
            "dtype": dtype.value,
            "shape": list(shape),
            "data_offsets": [at - begin, at - begin + size],
        }
        tensors.append(TensorSpan(name, layer, part, shape, at, size))
        at += size
    text = json.dumps(described, separators=(",", ":")).encode()
    return BlockFile(struct.pack("<Q", begin - 8) + text.ljust(begin - 8), tuple(tensors), at)
