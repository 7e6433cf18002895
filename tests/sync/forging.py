"""Artifacts of the shared fixture with other bytes, and what auditors sign about them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvsync_protocol.attestation import Attestation, Discrepancy
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.divergence import block_spans
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Tree
from kvsync_protocol.signing import SigningKey


def diverging(artifact: Any, block: int, key: SigningKey, change: int = 1) -> Any:
    """The same computation with the last byte of a block changed, signed by `key`; block -1 for the logits."""
    index = block_spans(artifact.manifest.layout)[block][0].index
    chunks = list(artifact.chunks)
    chunks[index] = chunks[index][:-1] + bytes([chunks[index][-1] ^ change])
    table = LeafTable.of([Leaf(sha256(chunk), len(chunk)) for chunk in chunks])
    tree = Tree(table.root, len(table.leaves), table.total_bytes)
    manifest = replace(artifact.manifest, leaf_table=sha256(table.encode()), tree=tree)
    return replace(
        artifact, envelope=manifest.seal(key), manifest=manifest, leaves=table.encode(), chunks=chunks, key=key
    )


def renamed(artifact: Any, key: SigningKey) -> Any:
    """Equal bytes under another id: only what its text is said to be differs."""
    tokens = replace(artifact.manifest.tokens, text=sha256(key.public.raw))
    manifest = replace(artifact.manifest, tokens=tokens)
    return replace(artifact, envelope=manifest.seal(key), manifest=manifest, key=key)


def attested(
    artifact: Any,
    key: SigningKey,
    *blocks: int,
    leaf: int | None = None,
    found: Digest | None = None,
    numerics: Digest | None = None,
) -> Envelope:
    """What `key` says about `blocks`, all without any."""
    total = artifact.manifest.layout.blocks
    audited = blocks or tuple(range(total))
    differs = None if leaf is None else Discrepancy(leaf, found or sha256(b"computed"))
    numerics = numerics or artifact.manifest.fingerprints.numerics.digest
    return Attestation.of(artifact.id, numerics, audited, logits=total - 1 in audited, differs=differs).seal(key)
