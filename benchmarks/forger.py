"""A forger with a key: artifacts whose digests, tree and signature are all in order, and whose bytes are wrong.

    flip        one bit of one value of block j; everything else as the honest signer left it
    consistent  block j as before, and every later block computed honestly from the corrupt state

Only recomputing tells either from the honest artifact. Used by the audit program and the tests of the audit.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace

from kvsync.engines.engine import Engine
from kvsync.pack import ArtifactReader, ArtifactWriter
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.divergence import block_spans
from kvsync_protocol.layout import Group, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Tree
from kvsync_protocol.prefix import encode_tokens
from kvsync_protocol.signing import SigningKey

MANTISSA_BITS = {"F32": 23, "F16": 10, "BF16": 7}


class Chunks:
    """Chunks in memory, opened like a store's."""

    def __init__(self) -> None:
        self.data: dict[Digest, bytes] = {}

    def append(self, data: memoryview | bytes) -> Leaf:
        kept = bytes(data)
        self.data[sha256(kept)] = kept
        return Leaf(sha256(kept), len(kept))

    def open_chunk(self, digest: Digest) -> int:
        descriptor = os.memfd_create("chunk")
        os.write(descriptor, self.data[digest])
        return descriptor


def flip(store: Store, stored: StoredArtifact, key: SigningKey, block: int, rng: random.Random) -> StoredArtifact:
    """The artifact with one mantissa bit of one value of `block` flipped, signed by `key`."""
    chunks = _read(store, stored)
    leaves = list(stored.leaves().leaves)
    index, data = _flipped(stored.manifest.layout, leaves, chunks, block, rng)
    leaves[index] = chunks.append(data)
    return _publish(store, stored, key, leaves, chunks)


def consistent(
    store: Store, engine: Engine, stored: StoredArtifact, key: SigningKey, block: int, rng: random.Random
) -> StoredArtifact:
    """As `flip`, with every later block and the logits computed from the corrupt state."""
    layout, tokens = stored.manifest.layout, stored.tokens()
    chunks = _read(store, stored)
    leaves = list(stored.leaves().leaves)
    index, data = _flipped(layout, leaves, chunks, block, rng)
    leaves[index] = chunks.append(data)
    end = layout.block_range(block)[1]
    if end < layout.tokens:
        reader = ArtifactReader(chunks, stored.artifact, layout, LeafTable.of(leaves))
        context = engine.restore(reader, end)
        rest = _Tail(chunks, block_spans(layout)[block + 1][0].index, leaves)
        writer = ArtifactWriter(rest, layout, next_block=block + 1)
        schedule = stored.manifest.schedule
        writer.write_logits(engine.prefill(context, tokens[end:], schedule, sink=writer.write_block).buffer())
    return _publish(store, stored, key, leaves, chunks)


class _Tail:
    """Takes the chunks from `at` on in place of the honest ones."""

    def __init__(self, chunks: Chunks, at: int, leaves: list[Leaf]) -> None:
        self._chunks, self._at, self._leaves = chunks, at, leaves

    def append(self, data: memoryview) -> Leaf:
        self._leaves[self._at] = self._chunks.append(data)
        self._at += 1
        return self._leaves[self._at - 1]


def _flipped(layout: Layout, leaves: list[Leaf], chunks: Chunks, block: int, rng: random.Random) -> tuple[int, bytes]:
    """A leaf of the block's keys and values, and its bytes with one mantissa bit changed."""
    attention = [group.name for group in layout.groups if isinstance(group, Group)]
    span = rng.choice([span for span in block_spans(layout)[block] if span.group in attention])
    group = layout.group(span.group)
    assert isinstance(group, Group)
    dtype = group.dtype
    data = bytearray(chunks.data[leaves[span.index].digest])
    header = max(0, len(layout.file(block, span.group).header) - span.offset)
    at = header + dtype.size * rng.randrange((span.size - header) // dtype.size)
    bit = rng.randrange(MANTISSA_BITS[dtype.value])
    data[at + bit // 8] ^= 1 << bit % 8
    return span.index, bytes(data)


def _read(store: Store, stored: StoredArtifact) -> Chunks:
    chunks = Chunks()
    for leaf in stored.leaves().leaves:
        with os.fdopen(store.open_chunk(leaf.digest), "rb") as file:
            chunks.append(file.read())
    return chunks


def _publish(
    store: Store, stored: StoredArtifact, key: SigningKey, leaves: list[Leaf], chunks: Chunks
) -> StoredArtifact:
    table = LeafTable.of(leaves)
    tree = Tree(table.root, len(table.leaves), table.total_bytes)
    manifest = replace(stored.manifest, leaf_table=sha256(table.encode()), tree=tree)
    tokens = encode_tokens(stored.tokens())
    with store.pull_draft(manifest.seal(key), manifest, table.encode(), tokens) as draft:
        for index in draft.missing():
            draft.put(index, chunks.data[leaves[index].digest])
        return draft.publish()
