"""Settle a divergence: one side, both or neither has the bytes that were recomputed here.

Leading blocks are the same on both sides, so what was recomputed from one side's state judges the other too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kvsync.evidence.recompute import Findings
from kvsync.store import Evidence, StoredDivergence
from kvsync_protocol.attestation import Attestation, Discrepancy
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.divergence import Side, block_spans
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey, SigningKey


@dataclass(frozen=True, slots=True)
class Settlement:
    """Whose bytes of the block in dispute were computed here, too, and who has signed the others."""

    divergence: Digest
    block: int
    right: tuple[ArtifactId, ...]
    wrong: tuple[ArtifactId, ...]
    signers: tuple[PublicKey, ...]
    """Trusted keys that have signed what is wrong."""

    def as_dict(self) -> dict[str, object]:
        return {
            "divergence": str(self.divergence),
            "block": self.block,
            "right": [str(artifact) for artifact in self.right],
            "wrong": [str(artifact) for artifact in self.wrong],
            "wrong_signers": [str(key) for key in self.signers],
        }


def settle(
    evidence: Evidence,
    record: StoredDivergence,
    found: Findings,
    numerics: Digest,
    signer: SigningKey,
    trusted: Collection[PublicKey],
) -> Settlement:
    """Refute, with this node's signature, every side whose leaves are not those that were recomputed."""
    block = record.divergence.block
    computed = found.leaves[block]
    right: list[ArtifactId] = []
    wrong: list[ArtifactId] = []
    signers: set[PublicKey] = set()
    for side, manifest in zip(record.divergence.sides, record.divergence.check(), strict=True):
        differs = _difference(side, manifest, block, computed)
        if differs is None:
            right.append(side.artifact)
            continue
        wrong.append(side.artifact)
        signers.update(side.envelope.signers(trusted))
        last = manifest.layout.blocks - 1
        attestation = Attestation.of(
            side.artifact, numerics, [min(block, last)], logits=block > last, differs=differs
        )
        evidence.refute(attestation.seal(signer))
    return Settlement(record.name, block, tuple(right), tuple(wrong), tuple(sorted(signers)))


def _difference(side: Side, manifest: Manifest, block: int, computed: Mapping[int, Leaf]) -> Discrepancy | None:
    spans = block_spans(manifest.layout)[block]
    for span, proven in zip(spans, side.leaves, strict=True):
        leaf = computed.get(span.index)  # a snapshot at one artifact's end is not among the other's leaves
        if leaf is not None and leaf != proven.leaf:
            return Discrepancy(span.index, leaf.digest)
    return None
