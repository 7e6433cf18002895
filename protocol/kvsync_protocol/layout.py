"""Where every byte of an artifact stands: groups, block files, tensors, chunks (SPEC 3.2).

Everything here is computed from the signed geometry, so nothing about sizes or offsets is ever taken
from a peer or from a file's own header:

    artifact   block 0          block 1        …  last block      logits
    groups     [full][sliding]  [full][sliding]   [full][sliding] [logits]     one file each
    chunks     each file cut every MAX_CHUNK_BYTES; leaf i of the tree is chunk i in this order

Groups of states have files only where a snapshot stands: at the end of every n-th block, of the last full one,
and of the artifact. The one that stands behind the last full block for no other reason comes after that block's
other files, so that the leaves before it are a longer document's as well.

Counts and sizes are arithmetic and are checked against their limits before anything is laid out.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from math import lcm

from kvsync_protocol.blockfile import (
    BlockFile,
    TensorSpan,
    block_file,
    logits_file,
    logits_file_size,
    state_file,
)
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.group import LOGITS_GROUP, DType, Group, LayerKind
from kvsync_protocol.groups import AnyGroup
from kvsync_protocol.limits import (
    MAX_BLOCK_TOKENS,
    MAX_CHUNK_BYTES,
    MAX_GROUPS,
    MAX_LEAVES,
    MAX_TOKENS,
    MAX_VOCAB,
)
from kvsync_protocol.state import StateGroup, StatePart

__all__ = [
    "LOGITS_GROUP",
    "AnyGroup",
    "BlockFile",
    "ChunkSpan",
    "DType",
    "Group",
    "LayerKind",
    "Layout",
    "StateGroup",
    "StatePart",
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
    groups: tuple[AnyGroup, ...]
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
        return self.leading_leaves(self.full_blocks)

    def leading_leaves(self, blocks: int) -> int:
        """Leaves of the first `blocks` full blocks, without the snapshot that only an artifact's end puts there."""
        states = sum(blocks // group.every * _pieces(group.file_size) for group in self._states)
        return blocks * sum(_pieces(group.file_size(self.block_tokens)) for group in self._attention) + states

    @property
    def first_block_leaves(self) -> int:
        """Leaves of the first block, full or not; the logits count when there is no other."""
        return self.leading_leaves(1) if self.full_blocks else self.leaf_count

    @property
    def leaf_count(self) -> int:
        return self.full_leaves + sum(_pieces(size) for size in self._end_sizes())

    @property
    def total_bytes(self) -> int:
        """Bytes of all chunks, uncompressed."""
        states = sum(self.full_blocks // group.every * group.file_size for group in self._states)
        full = self.full_blocks * sum(group.file_size(self.block_tokens) for group in self._attention)
        return full + states + sum(self._end_sizes())

    def _end_sizes(self) -> Iterator[int]:
        """The files behind those of the full blocks: snapshots at the last one's end, partial block, logits."""
        if self.full_blocks:
            yield from (group.file_size for group in self._states if self.full_blocks % group.every)
        if self.tail_tokens:
            yield from (group.file_size(self.tail_tokens) for group in self._attention)
            yield from (group.file_size for group in self._states)
        yield logits_file_size(self.vocab, self.logits_dtype)

    def restorable(self, position: int) -> int:
        """The last place at or before `position` at which a graft can begin.

        A place is a multiple of `block_tokens` or the artifact's end; groups of states must have a snapshot there.
        """
        if position >= self.tokens:
            return self.tokens
        blocks = max(0, position) // self.block_tokens
        return (blocks if blocks == self.full_blocks else self.resumable(blocks)) * self.block_tokens

    def resumable(self, blocks: int) -> int:
        """The most of `blocks` full blocks whose `leading_leaves` end with a snapshot of all states."""
        return blocks - blocks % lcm(*(group.every for group in self._states))

    def groups_of(self, block: int) -> tuple[str, ...]:
        """The groups that have a file at this block, in the files' order."""
        if block >= self.full_blocks:
            return self._names
        count = block + 1
        due = {group.name for group in self._states if count % group.every == 0}
        rest = {group.name for group in self._states} - due
        last = tuple(name for name in self._names if name in rest) if count == self.full_blocks else ()
        return tuple(name for name in self._names if name not in rest) + last

    def block_range(self, block: int) -> tuple[int, int]:
        """Tokens of a block, half-open."""
        start = block * self.block_tokens
        return start, min(start + self.block_tokens, self.tokens)

    def group(self, name: str) -> AnyGroup:
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
        if group in self._state_files:
            if group not in self.groups_of(block):
                raise KeyError(group)
            return self._state_files[group]
        return (self._full_files if block < self.full_blocks else self._tail_files)[group]

    def chunks(self) -> Iterator[ChunkSpan]:
        """Every chunk in leaf order: block-major, then group, then offset; the logits last."""
        yield from self._block_chunks(range(self.blocks))
        yield from self._logits_chunks()

    def chunk(self, index: int) -> ChunkSpan:
        """Leaf `index`, found without laying out the others. Raises IndexError when there is none."""
        if not 0 <= index < self.leaf_count:
            raise IndexError(index)
        block = bisect_right(range(self.full_blocks), index, key=self.leading_leaves) - 1
        spans = chain(self._block_chunks(range(max(0, block), self.blocks)), self._logits_chunks())
        return next(span for span in spans if span.index == index)

    def chunks_for_graft(self, position: int, *, logits: bool) -> Iterator[ChunkSpan]:
        """The chunks a graft at `position` needs: of windowed groups blocks in reach, of states one snapshot.

        Raises:
            ValueError: no graft can begin at `position`; `restorable` tells where one can.
        """
        if self.restorable(position) != position:
            raise ValueError(f"no cut with all states at {position}")
        last = -(-position // self.block_tokens)
        needed = {group.name: group.first_needed(position) for group in self._attention}
        first = min(needed.values(), default=(last - 1) * self.block_tokens) // self.block_tokens
        for span in self._block_chunks(range(max(0, first), last)):
            begin = needed.get(span.group)
            if span.block == last - 1 if begin is None else begin < self.block_range(span.block)[1]:
                yield span
        if logits:
            yield from self._logits_chunks()

    def _block_chunks(self, blocks: Iterable[int]) -> Iterator[ChunkSpan]:
        for block in blocks:
            cuts = self._full_cuts if block < self.full_blocks else self._tail_cuts
            first = self.leading_leaves(min(block, self.full_blocks))
            if block == self.full_blocks:
                first += self._closing_leaves
            found = ((group, *cut) for group in self.groups_of(block) for cut in cuts[group])
            for index, (group, offset, size) in enumerate(found, first):
                yield ChunkSpan(index, block, group, offset, size)

    def _logits_chunks(self) -> Iterator[ChunkSpan]:
        size = logits_file_size(self.vocab, self.logits_dtype)
        first = self.leaf_count - _pieces(size)
        for index, (offset, part) in enumerate(_cuts(size), first):
            yield ChunkSpan(index, self.blocks, LOGITS_GROUP, offset, part)

    # Worked out once per layout, at first use, and gone with it.

    @cached_property
    def _by_name(self) -> dict[str, AnyGroup]:
        return {group.name: group for group in self.groups}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(group.name for group in self.groups)

    @cached_property
    def _attention(self) -> tuple[Group, ...]:
        return tuple(group for group in self.groups if isinstance(group, Group))

    @cached_property
    def _states(self) -> tuple[StateGroup, ...]:
        return tuple(group for group in self.groups if isinstance(group, StateGroup))

    @cached_property
    def _closing_leaves(self) -> int:
        states = self._states if self.full_blocks else ()
        return sum(_pieces(group.file_size) for group in states if self.full_blocks % group.every)

    @cached_property
    def _full_cuts(self) -> dict[str, list[tuple[int, int]]]:
        return self._cuts_by_group(self.block_tokens)

    @cached_property
    def _tail_cuts(self) -> dict[str, list[tuple[int, int]]]:
        return self._cuts_by_group(self.tail_tokens)

    def _cuts_by_group(self, tokens: int) -> dict[str, list[tuple[int, int]]]:
        sizes = {group.name: group.file_size(tokens) for group in self._attention}
        sizes |= {group.name: group.file_size for group in self._states}
        return {name: list(_cuts(size)) for name, size in sizes.items()}

    @cached_property
    def _full_files(self) -> dict[str, BlockFile]:
        return {group.name: block_file(group, self.block_tokens) for group in self._attention}

    @cached_property
    def _tail_files(self) -> dict[str, BlockFile]:
        return {group.name: block_file(group, self.tail_tokens) for group in self._attention}

    @cached_property
    def _state_files(self) -> dict[str, BlockFile]:
        return {group.name: state_file(group) for group in self._states}

    @cached_property
    def _logits_file(self) -> BlockFile:
        return logits_file(self.vocab, self.logits_dtype)


def _pieces(size: int) -> int:
    return -(-size // MAX_CHUNK_BYTES)


def _cuts(size: int) -> Iterator[tuple[int, int]]:
    for offset in range(0, size, MAX_CHUNK_BYTES):
        yield offset, min(MAX_CHUNK_BYTES, size - offset)
