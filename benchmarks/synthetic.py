"""Artifacts of random bytes under a real model's geometry: for measuring transfer and storage, not arithmetic."""

from __future__ import annotations

import os
import random
from typing import Final

from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import sha256
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.limits import MiB
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import encode_tokens
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

BLOCK_TOKENS: Final = 256
_LAYERS: Final = 32
_GROUP: Final = Group("full", LayerKind.FULL, tuple(range(_LAYERS)), 8, 128, 128, DType.BF16)
_VOCAB: Final = 32_000
_FINGERPRINTS: Final = Fingerprints(
    Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": "synthetic: random bytes, no model"}),
    Fingerprint(FingerprintKind.NUMERICS, {"engine": "synthetic: nothing was computed"}),
)


def layout_of(mib: int) -> Layout:
    """The smallest whole number of blocks of an 8-billion-parameter model's shape with at least `mib` MiB."""
    per_block = Layout(BLOCK_TOKENS, BLOCK_TOKENS, (_GROUP,), _VOCAB, DType.F32).total_bytes
    blocks = max(1, -(-mib * MiB // per_block))
    return Layout(blocks * BLOCK_TOKENS, BLOCK_TOKENS, (_GROUP,), _VOCAB, DType.F32)


def windowed(blocks: int) -> Layout:
    """So many blocks of Gemma 3 270M's shape: 15 layers with a window of 512 tokens, 3 that see everything."""
    full = (5, 11, 17)
    sliding = tuple(layer for layer in range(18) if layer not in full)
    groups = (
        Group("full", LayerKind.FULL, full, 1, 256, 256, DType.BF16),
        Group("sliding", LayerKind.SLIDING, sliding, 1, 256, 256, DType.BF16, window=512),
    )
    return Layout(blocks * BLOCK_TOKENS, BLOCK_TOKENS, groups, 262_144, DType.F32)


def deposit(store: Store, key: SigningKey, mib: int, *, seed: int = 0) -> StoredArtifact:
    """Store an artifact of at least `mib` MiB, one chunk in memory at a time. Its bytes are random every time."""
    return deposit_as(store, key, layout_of(mib), seed=seed)


def deposit_as(store: Store, key: SigningKey, layout: Layout, *, seed: int = 0) -> StoredArtifact:
    """The same of a certain geometry."""
    rng = random.Random(seed)
    tokens = encode_tokens([rng.randrange(_VOCAB) for _ in range(layout.tokens)])
    with store.compute_draft(sha256(os.urandom(32))) as draft:
        for span in layout.chunks():
            header = layout.file(span.block, span.group).header[span.offset : span.offset + span.size]
            draft.append(header + os.urandom(span.size - len(header)))
        table = LeafTable.of(draft.leaves)
        leaves = table.encode()
        manifest = Manifest(
            TokenRecord(sha256(tokens), layout.tokens),
            Schedule(BLOCK_TOKENS),
            layout,
            sha256(leaves),
            Tree(table.root, len(table.leaves), table.total_bytes),
            _FINGERPRINTS,
        )
        return draft.publish(manifest.seal(key), manifest, leaves, tokens)
