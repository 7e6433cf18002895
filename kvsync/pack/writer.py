"""From block tensors to chunks: assembles the block files that the layout prescribes and cuts them.

Knows bytes and offsets. Where tensors come from is the engine's business, where chunks go the draft's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from kvsync.errors import EngineError
from kvsync_protocol.layout import LOGITS_GROUP, BlockFile, Layout
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.limits import MAX_CHUNK_BYTES


class ChunkSink(Protocol):
    """Takes chunks in artifact order; `kvsync.store.ComputeDraft` is one."""

    def append(self, data: memoryview) -> Leaf: ...


class ArtifactWriter:
    """Writes an artifact block by block, each exactly once and in order.

    Args:
        sink: receives every chunk; owns hashing and durability.
        layout: the geometry of the whole artifact.
        next_block: the first block that the sink does not have yet.
    """

    def __init__(self, sink: ChunkSink, layout: Layout, *, next_block: int = 0) -> None:
        self._sink = sink
        self._layout = layout
        self._next = next_block

    def write_block(self, block: int, tensors: Mapping[tuple[int, str], memoryview]) -> None:
        """Write one block from its tensors, `(layer, "key" | "value") -> [kv_heads, tokens, dim]` as bytes.

        States at the block's end come with every block; those of which no snapshot is stored here are left out.

        Raises:
            EngineError: `engine.capture` when a block is out of order or a tensor has another size.
            StoreError: from the sink.
        """
        if block != self._next:
            raise EngineError("engine.capture", f"block {block} came when {self._next} was due")
        for group in self._layout.groups_of(block):
            file = self._layout.file(block, group)
            self._write_file(file, [_tensor(tensors, span.layer, span.part) for span in file.tensors])
        self._next += 1

    def write_logits(self, data: memoryview) -> None:
        """Write the final logits, `[vocab]` as bytes, after the last block. Raises as `write_block`."""
        if self._next != self._layout.blocks:
            raise EngineError("engine.capture", f"the logits came before block {self._next}")
        self._write_file(self._layout.file(self._layout.blocks, LOGITS_GROUP), [data])

    def _write_file(self, file: BlockFile, tensors: Sequence[memoryview]) -> None:
        whole = bytearray(file.size)
        whole[: len(file.header)] = file.header
        for span, data in zip(file.tensors, tensors, strict=True):
            if data.nbytes != span.size:
                raise EngineError(
                    "engine.capture", f"{span.name} has {data.nbytes} bytes where the layout has {span.size}"
                )
            whole[span.offset : span.offset + span.size] = data.cast("B")
        view = memoryview(whole)
        for offset in range(0, file.size, MAX_CHUNK_BYTES):
            self._sink.append(view[offset : offset + MAX_CHUNK_BYTES])


def _tensor(tensors: Mapping[tuple[int, str], memoryview], layer: int, part: str) -> memoryview:
    try:
        return tensors[layer, part]
    except KeyError:
        raise EngineError("engine.capture", f"the {part} of layer {layer} was not captured") from None
