"""Stores of thousands of tiny artifacts, made cheaply: files are written directly, the index is filled from them.

What grows with the number of artifacts is to be measured, not their bytes. Nothing was computed.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from kvsync.store import Store
from kvsync_protocol.digest import sha256
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import encode_tokens
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

BLOCK_TOKENS: Final = 16
_GROUP: Final = Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.BF16)
LAYOUT: Final = Layout(40, BLOCK_TOKENS, (_GROUP,), 32, DType.F32)
FINGERPRINTS: Final = Fingerprints(
    Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": "synthetic: random bytes, no model"}),
    Fingerprint(FingerprintKind.NUMERICS, {"engine": "synthetic: nothing was computed"}),
)


def fill(root: Path, key: SigningKey, count: int, *, seed: int = 0) -> None:
    """A store with `count` artifacts of three blocks and 40 tokens at `root`, which must be empty or absent."""
    rng = random.Random(seed)
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("artifacts", "chunks", *(f"chunks/{shard:02x}" for shard in range(256))):
        (root / name).mkdir(mode=0o700, exist_ok=True)
    headers = [(span, LAYOUT.file(span.block, span.group).header) for span in LAYOUT.chunks()]
    for _ in range(count):
        leaves = []
        for span, whole in headers:
            header = whole[span.offset : span.offset + span.size]
            data = header + rng.randbytes(span.size - len(header))
            leaves.append(Leaf(sha256(data), len(data)))
            _write(root / "chunks" / leaves[-1].digest.hex[:2] / leaves[-1].digest.hex, data)
        tokens = encode_tokens([rng.randrange(32) for _ in range(LAYOUT.tokens)])
        table = LeafTable.of(leaves)
        manifest = Manifest(
            TokenRecord(sha256(tokens), LAYOUT.tokens),
            Schedule(BLOCK_TOKENS).with_boundary(LAYOUT.tokens),
            LAYOUT,
            sha256(table.encode()),
            Tree(table.root, len(table.leaves), table.total_bytes),
            FINGERPRINTS,
        )
        folder = root / "artifacts" / manifest.artifact.hex
        folder.mkdir(mode=0o700)
        _write(folder / "envelope.json", manifest.seal(key).encode())
        _write(folder / "leaves", table.encode())
        _write(folder / "tokens", tokens)
    with Store.open(root) as store:
        if store.usage().artifacts != count:
            raise RuntimeError("some artifacts were not taken into the index")


def _write(path: Path, data: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(data)
