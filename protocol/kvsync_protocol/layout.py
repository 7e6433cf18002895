"""Where every byte of an artifact stands: groups, block files, tensors, chunks (SPEC 3.2).

Everything here is computed from the signed geometry, so nothing about sizes or offsets is ever taken
from a peer or from a file's own header:

    artifact   block 0          block 1        …  last block      logits
    groups     [full][sliding]  [full][sliding]   [full][sliding] [logits]     one file each
    chunks     each file cut every MAX_CHUNK_BYTES; leaf i of the tree is chunk i in this order

Counts and sizes are arithmetic and are checked against their limits before anything is laid out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from kvsync_protocol.blockfile import BlockFile, TensorSpan, block_file, logits_file, logits_file_size
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.group import LOGITS_GROUP, DType, Group, LayerKind
from kvsync_protocol.limits import (
    MAX_BLOCK_TOKENS,
    MAX_CHUNK_BYTES,
    MAX_GROUPS,
    MAX_LEAVES,
    MAX_TOKENS,
    MAX_VOCAB,
)

__all__ = [
    "LOGITS_GROUP",
    "BlockFile",
    "ChunkSpan",
    "DType",
    "Group",
    "LayerKind",
    "Layout",
    "TensorSpan",
    "block_file",
    "logits_file",
]


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Leaf `index`: bytes offset..offset+size of the file of (`block`, `group`)."""

    index: int
    block: int
    group: str
    offset: int
    size: int


@dataclass(frozen=True)
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
        if not 1 <= self.tokens <= MAX_TOKENS or not 1 <= self.block_tokens <= MAX_BLOCK_TOKENS:
            raise MalformedError("layout.tokens", "an artifact has at least one token and not too many")
        names = [group.name for group in self.groups]
        if not 1 <= len(names) <= MAX_GROUPS or len(set(names)) != len(names):
            raise MalformedError("layout.groups", "groups are missing, too many or share a name")
        layers = sorted(layer for group in self.groups for layer in group.layers)
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

    @property
    def full_leaves(self) -> int:
        """Leaves of the full blocks: those a longer document shares (SPEC 4.3)."""
        return self.full_blocks * sum(map(_pieces, self._sizes(self.block_tokens)))

    @property
    def leaf_count(self) -> int:
        tail = sum(map(_pieces, self._sizes(self.tail_tokens))) if self.tail_tokens else 0
        return self.full_leaves + tail + _pieces(logits_file_size(self.vocab, self.logits_dtype))

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks, uncompressed."""
        tail = sum(self._sizes(self.tail_tokens)) if self.tail_tokens else 0
        full = self.full_blocks * sum(self._sizes(self.block_tokens))
        return full + tail + logits_file_size(self.vocab, self.logits_dtype)

    def _sizes(self, tokens: int) -> Iterator[int]:
        return (group.file_size(tokens) for group in self.groups)

    def block_range(self, block: int) -> tuple[int, int]:
        """Tokens of a block, half-open."""
        start = block * self.block_tokens
        return start, min(start + self.block_tokens, self.tokens)

    def group(self, name: str) -> Group:
        """Raises KeyError when no group has this name."""
        return self._by_name[name]

    def file(self, block: int, group: str) -> BlockFile:
        """The file of (`block`, `group`); the logits stand after the last block.

        Raises KeyError when there is no such block or group; a caller's mistake, not a peer's.
        """
        if group == LOGITS_GROUP and block == self.blocks:
            return self._logits_file
        if not 0 <= block < self.blocks:
            raise KeyError(block)
        return (self._full_files if block < self.full_blocks else self._tail_files)[group]

    def chunks(self) -> Iterator[ChunkSpan]:
        """Every chunk in leaf order: block-major, then group, then offset; the logits last."""
        yield from self._block_chunks(range(self.blocks))
        yield from self._logits_chunks()

    def chunks_for_graft(self, position: int, *, logits: bool) -> Iterator[ChunkSpan]:
        """The chunks a graft at `position` needs: for sliding groups only blocks inside the window.

        Raises:
            ValueError: `position` is neither a multiple of `block_tokens` nor the artifact's end.
        """
        if not 0 <= position <= self.tokens or (position % self.block_tokens and position != self.tokens):
            raise ValueError(f"no cut at {position}")
        needed = {group.name: group.first_needed(position) for group in self.groups}
        first = min(needed.values()) // self.block_tokens
        for span in self._block_chunks(range(first, -(-position // self.block_tokens))):
            if needed[span.group] < self.block_range(span.block)[1]:
                yield span
        if logits:
            yield from self._logits_chunks()

    def _block_chunks(self, blocks: Iterable[int]) -> Iterator[ChunkSpan]:
        per_block = len(self._full_cuts)
        for block in blocks:
            cuts = self._full_cuts if block < self.full_blocks else self._tail_cuts
            for index, (name, offset, size) in enumerate(cuts, block * per_block):
                yield ChunkSpan(index, block, name, offset, size)

    def _logits_chunks(self) -> Iterator[ChunkSpan]:
        size = logits_file_size(self.vocab, self.logits_dtype)
        first = self.leaf_count - _pieces(size)
        for index, (name, offset, part) in enumerate(_cuts(LOGITS_GROUP, size), first):
            yield ChunkSpan(index, self.blocks, name, offset, part)

    # Worked out once per layout, at first use, and gone with it.

    @cached_property
    def _by_name(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}

    @cached_property
    def _full_cuts(self) -> list[tuple[str, int, int]]:
        if not self.full_blocks:
            return []  # the limits were checked for blocks that exist
        return [cut for group in self.groups for cut in _cuts(group.name, group.file_size(self.block_tokens))]

    @cached_property
    def _tail_cuts(self) -> list[tuple[str, int, int]]:
        return [cut for group in self.groups for cut in _cuts(group.name, group.file_size(self.tail_tokens))]

    @cached_property
    def _full_files(self) -> dict[str, BlockFile]:
        return {group.name: block_file(group, self.block_tokens) for group in self.groups}

    @cached_property
    def _tail_files(self) -> dict[str, BlockFile]:
        return {group.name: block_file(group, self.tail_tokens) for group in self.groups}

    @cached_property
    def _logits_file(self) -> BlockFile:
        return logits_file(self.vocab, self.logits_dtype)


def _pieces(size: int) -> int:
    return -(-size // MAX_CHUNK_BYTES)


def _cuts(name: str, size: int) -> Iterator[tuple[str, int, int]]:
    for offset in range(0, size, MAX_CHUNK_BYTES):
        yield name, offset, min(MAX_CHUNK_BYTES, size - offset)
