"""Where the bytes of a chunk belong: which rows of which tensors, as slices to read into.

    chunk      |··header··|·· layer 0 key, head 0 ··|·· head 1 ··|·· layer 0 value, head 0 ·· …
    target     [head 0: tokens start … stop, free][head 1: tokens start … stop, free]   one contiguous array

Bytes of tokens outside a target (before a sliding window) are read into scratch: they are part of what
is hashed, but not of what is kept. A state of fixed size is read whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvsync.errors import EngineError
from kvsync_protocol.layout import AnyGroup, ChunkSpan, Layout, StateGroup, TensorSpan


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor of a cache under construction: writable bytes of `[kv_heads, room, dim]`.

    Each head's run begins with tokens start..stop; what is behind them stays as it is.
    """

    data: memoryview
    start: int
    stop: int
    room: int
    """Tokens from one head's run to the next."""

    @classmethod
    def of_state(cls, data: memoryview, position: int) -> Target:
        """For a state of fixed size: what is left of all tokens before `position`."""
        return cls(data, position, position, 0)

    def holds(self, start: int, stop: int, per_token: int) -> bool:
        """Whether it has place for exactly these tokens of `per_token` bytes over all heads."""
        right = (self.start, self.stop) == (start, stop) and self.room >= stop - start
        return right and self.data.nbytes == self.room * per_token


@dataclass(frozen=True, slots=True)
class _Piece:
    """`size` bytes at `offset` of a block file; `into` is None for what is not kept."""

    offset: int
    size: int
    into: memoryview | None


def check_targets(layout: Layout, position: int, targets: Mapping[tuple[int, str], Target]) -> None:
    """Refuse targets that do not hold exactly what a graft at `position` restores.

    Raises:
        EngineError: `engine.target`.
    """
    known = 0
    for group in layout.groups:
        for layer in group.layers:
            for part, size in _parts(group):
                known += 1
                target = targets.get((layer, part))
                if target is None or not _fits(target, group, position, size):
                    raise EngineError("engine.target", f"the {part} of layer {layer} has no room of the right shape")
    if len(targets) != known:
        raise EngineError("engine.target", "targets for layers that the artifact does not have")


def _parts(group: AnyGroup) -> list[tuple[str, int]]:
    """What each layer of a group holds, with its bytes: per token over all heads, or of a whole state."""
    if isinstance(group, StateGroup):
        return [(part.name, part.size) for part in group.parts]
    row = group.kv_heads * group.dtype.size
    return [("key", row * group.key_dim), ("value", row * group.value_dim)]


def _fits(target: Target, group: AnyGroup, position: int, size: int) -> bool:
    if isinstance(group, StateGroup):
        return (target.start, target.stop, target.data.nbytes) == (position, position, size)
    return target.holds(group.first_needed(position), position, size)


def slices(
    layout: Layout, span: ChunkSpan, targets: Mapping[tuple[int, str], Target], scratch: memoryview
) -> list[memoryview]:
    """The buffers, in file order, that together receive all of `span`; `scratch` takes what is not kept.

    The header's part comes first and always lands at the start of `scratch`.
    """
    file = layout.file(span.block, span.group)
    begin, end = span.offset, span.offset + span.size
    found: list[memoryview] = []
    used = 0
    for piece in _pieces(layout, span, targets):
        low, high = max(begin, piece.offset), min(end, piece.offset + piece.size)
        if low >= high:
            continue
        if piece.into is None:
            found.append(scratch[used : used + high - low])
            used += high - low
        else:
            found.append(piece.into[low - piece.offset : high - piece.offset])
    if sum(buffer.nbytes for buffer in found) != span.size:
        raise EngineError("engine.target", f"chunk {span.index} of a {file.size}-byte file is not covered")
    return found


def _pieces(layout: Layout, span: ChunkSpan, targets: Mapping[tuple[int, str], Target]) -> Iterator[_Piece]:
    file = layout.file(span.block, span.group)
    yield _Piece(0, len(file.header), None)
    begin, end = span.offset, span.offset + span.size
    block_start, block_stop = layout.block_range(span.block)
    states = isinstance(layout.group(span.group), StateGroup)
    for tensor in file.tensors:
        if tensor.offset >= end or tensor.offset + tensor.size <= begin:
            continue
        if states:
            yield _Piece(tensor.offset, tensor.size, targets[tensor.layer, tensor.part].data)
        else:
            yield from _rows(tensor, block_start, block_stop, targets[tensor.layer, tensor.part])


def _rows(tensor: TensorSpan, block_start: int, block_stop: int, target: Target) -> Iterator[_Piece]:
    """Each head's run of tokens: what lies before the target, what it keeps, what lies behind."""
    heads, tokens, _ = tensor.shape
    row = tensor.size // heads
    per_token = row // tokens
    kept_start = min(max(block_start, target.start), block_stop)
    kept_stop = max(min(block_stop, target.stop), kept_start)
    before, kept, after = kept_start - block_start, kept_stop - kept_start, block_stop - kept_stop
    for head in range(heads):
        offset = tensor.offset + head * row
        if before:
            yield _Piece(offset, before * per_token, None)
        if kept:
            at = (head * target.room + kept_start - target.start) * per_token
            into = target.data[at : at + kept * per_token]
            yield _Piece(offset + before * per_token, kept * per_token, into)
        if after:
            yield _Piece(offset + (before + kept) * per_token, after * per_token, None)
