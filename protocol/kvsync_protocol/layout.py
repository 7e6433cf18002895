"""Where every byte of an artifact stands: groups, block files, tensors, chunks.

Everything here is computed from the signed geometry, so nothing about sizes or offsets is ever taken
from a peer or from a file's own header:

    artifact   block 0          block 1        …  last block      logits
    groups     [full][sliding]  [full][sliding]   [full][sliding] [logits]     one file each
    file       8-byte length ‖ JSON header padded to 64 ‖ layer 0 key ‖ layer 0 value ‖ layer 1 …
    chunks     the file cut every MAX_CHUNK_BYTES; leaf i of the tree is chunk i in this order

A block file is a valid safetensors file whose header is determined byte for byte by the geometry:
a reader compares bytes instead of parsing (SPEC 3.3).
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import (
    MAX_CHUNK_BYTES,
    MAX_GROUPS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_LEAVES,
    MAX_TOKENS,
    MAX_VOCAB,
)

HEADER_ALIGNMENT = 64
LOGITS_GROUP = "logits"


class DType(enum.Enum):
    """Element types, by their safetensors names."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return 4 if self is DType.F32 else 2


class LayerKind(enum.Enum):
    """How a group's layers look at the past. Anything else is refused by name."""

    FULL = "full"
    SLIDING = "sliding"


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one attention kind and shape.

    Each layer holds per block a key `[kv_heads, tokens, key_dim]` and a value
    `[kv_heads, tokens, value_dim]`. `window` is the number of positions a token sees, itself
    included, and is set exactly for sliding groups.
    """

    name: str
    kind: LayerKind
    layers: tuple[int, ...]
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: DType
    window: int | None = None

    def __post_init__(self) -> None:
        ordered = all(a < b for a, b in zip(self.layers, self.layers[1:], strict=False))
        if not self.layers or not ordered or not 0 <= self.layers[0] <= self.layers[-1] < MAX_LAYERS:
            raise MalformedError("layout.layers", f"group {self.name!r}: layers are empty, unordered or too many")
        if not self.name.isidentifier() or self.name == LOGITS_GROUP or len(self.name) > 64:
            raise MalformedError("layout.name", "a group's name is a short identifier other than 'logits'")
        for number, high in (
            (self.kv_heads, MAX_HEADS),
            (self.key_dim, MAX_HEAD_DIM),
            (self.value_dim, MAX_HEAD_DIM),
        ):
            if not 1 <= number <= high:
                raise MalformedError("layout.shape", f"group {self.name!r}: a dimension is out of range")
        if (self.window is not None) != (self.kind is LayerKind.SLIDING) or (self.window or 2) < 2:
            raise MalformedError(
                "layout.window", f"group {self.name!r}: sliding groups, and only they, have a window"
            )

    def first_needed(self, position: int) -> int:
        """The first token a graft at `position` restores: 0, or the window's start.

        A sliding layer keeps the last `window - 1` tokens between calls.
        """
        return 0 if self.window is None else max(0, position - (self.window - 1))


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """One tensor of a block file: `[heads, tokens, dim]` at byte `offset` of the file."""

    name: str
    layer: int
    part: str  # "key" or "value"
    shape: tuple[int, int, int]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Leaf `index`: bytes offset..offset+size of the file of (`block`, `group`)."""

    index: int
    block: int
    group: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class BlockFile:
    """The exact shape of one (group, token count) file. `header` is its first bytes."""

    header: bytes
    tensors: tuple[TensorSpan, ...]
    size: int


@lru_cache(maxsize=256)
def block_file(group: Group, tokens: int) -> BlockFile:
    """The file that holds `tokens` consecutive tokens of `group`."""
    entries: list[tuple[str, int, str, tuple[int, int, int], int]] = []
    for layer in group.layers:
        for part, dim in (("key", group.key_dim), ("value", group.value_dim)):
            shape = (group.kv_heads, tokens, dim)
            size = group.kv_heads * tokens * dim * group.dtype.size
            entries.append((f"layers.{layer}.{part}", layer, part, shape, size))
    return _file(entries, group.dtype)


@lru_cache(maxsize=16)
def logits_file(vocab: int, dtype: DType) -> BlockFile:
    """The file that holds the final logits, `[1, 1, vocab]`."""
    return _file([("logits", 0, "logits", (1, 1, vocab), vocab * dtype.size)], dtype)


def _file(entries: list[tuple[str, int, str, tuple[int, int, int], int]], dtype: DType) -> BlockFile:
    described: dict[str, object] = {"__metadata__": {"format": "kvsync-block/1"}}
    offset = 0
    for name, _, _, shape, size in entries:
        described[name] = {"dtype": dtype.value, "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % HEADER_ALIGNMENT)
    header = struct.pack("<Q", len(text)) + text
    tensors, at = [], len(header)
    for name, layer, part, shape, size in entries:
        tensors.append(TensorSpan(name, layer, part, shape, at, size))
        at += size
    return BlockFile(header, tuple(tensors), at)


@dataclass(frozen=True, slots=True)
class Layout:
    """The geometry of an artifact of `tokens` tokens.

    Raises:
        MalformedError: `layout.*` when the geometry is impossible or over a limit.
    """

    tokens: int
    block_tokens: int
    groups: tuple[Group, ...]
    vocab: int
    logits_dtype: DType

    def __post_init__(self) -> None:
        if not 1 <= self.tokens <= MAX_TOKENS or self.block_tokens < 1:
            raise MalformedError("layout.tokens", "an artifact has at least one token and not too many")
        names = [group.name for group in self.groups]
        layers = sorted(layer for group in self.groups for layer in group.layers)
        if not 1 <= len(names) <= MAX_GROUPS or len(set(names)) != len(names):
            raise MalformedError("layout.groups", "groups are missing, too many or share a name")
        if layers != list(range(len(layers))):
            raise MalformedError("layout.layers", "every layer belongs to exactly one group")
        if not 1 <= self.vocab <= MAX_VOCAB:
            raise MalformedError("layout.vocab", "vocabulary size out of range")
        if self.leaf_count > MAX_LEAVES:
            raise MalformedError("layout.leaves", f"more than {MAX_LEAVES} chunks")

    @property
    def full_blocks(self) -> int:
        return self.tokens // self.block_tokens

    @property
    def tail_tokens(self) -> int:
        """Tokens in the partial last block, 0 when there is none."""
        return self.tokens % self.block_tokens

    @property
    def blocks(self) -> int:
        """Blocks including the partial one, without the logits."""
        return self.full_blocks + (self.tail_tokens > 0)

    @property
    def layer_count(self) -> int:
        return sum(len(group.layers) for group in self.groups)

    def block_range(self, block: int) -> tuple[int, int]:
        """Tokens of a block, half-open."""
        start = block * self.block_tokens
        return start, min(start + self.block_tokens, self.tokens)

    def group(self, name: str) -> Group:
        return next(group for group in self.groups if group.name == name)

    def file(self, block: int, group: str) -> BlockFile:
        """The file of (`block`, `group`); the logits stand after the last block."""
        if group == LOGITS_GROUP:
            return logits_file(self.vocab, self.logits_dtype)
        start, stop = self.block_range(block)
        return block_file(self.group(group), stop - start)

    def _block_leaves(self, tokens: int) -> int:
        return sum(_pieces(block_file(group, tokens).size) for group in self.groups)

    @property
    def full_leaves(self) -> int:
        """Leaves of the full blocks: those a longer document shares (SPEC 4.3)."""
        return self.full_blocks * self._block_leaves(self.block_tokens) if self.full_blocks else 0

    @property
    def leaf_count(self) -> int:
        tail = self._block_leaves(self.tail_tokens) if self.tail_tokens else 0
        return self.full_leaves + tail + _pieces(logits_file(self.vocab, self.logits_dtype).size)

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks, uncompressed."""
        full = sum(block_file(g, self.block_tokens).size for g in self.groups) if self.full_blocks else 0
        tail = sum(block_file(g, self.tail_tokens).size for g in self.groups) if self.tail_tokens else 0
        return self.full_blocks * full + tail + logits_file(self.vocab, self.logits_dtype).size

    def chunks(self) -> Iterator[ChunkSpan]:
        """Every chunk in leaf order: block-major, then group, then offset; the logits last."""
        index = 0
        for block in range(self.blocks + 1):
            names = [g.name for g in self.groups] if block < self.blocks else [LOGITS_GROUP]
            for name in names:
                size = self.file(block, name).size
                for offset in range(0, size, MAX_CHUNK_BYTES):
                    yield ChunkSpan(index, block, name, offset, min(MAX_CHUNK_BYTES, size - offset))
                    index += 1

    def chunks_for_graft(self, position: int, *, logits: bool) -> Iterator[ChunkSpan]:
        """The chunks a graft at `position` needs: for sliding groups only blocks inside the window.

        `position` is a multiple of `block_tokens`, or the artifact's own length.
        """
        for span in self.chunks():
            if span.group == LOGITS_GROUP:
                if logits:
                    yield span
                continue
            _start, stop = self.block_range(span.block)
            if stop <= position and stop > self.group(span.group).first_needed(position):
                yield span


def _pieces(size: int) -> int:
    return -(-size // MAX_CHUNK_BYTES)
