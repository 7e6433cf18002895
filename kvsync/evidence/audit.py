"""Audit: check another's computation block by block, sign what was found, settle what is in dispute.

If every block passes, the artifact is right by induction; each check stands alone, so n hosts divide an audit
although prefill is sequential. What an audit of this node's own refutes is never matched, grafted or pulled.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from kvsync.engines.engine import Engine
from kvsync.errors import NotFoundError
from kvsync.evidence.recompute import Findings, Wrong, recompute
from kvsync.evidence.selection import Selection
from kvsync.evidence.settle import Settlement, settle
from kvsync.progress import Progress, silent
from kvsync.store import Store, StoredArtifact, StoredDivergence
from kvsync_protocol.attestation import Attestation, Coverage, Discrepancy
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.fingerprint import Difference
from kvsync_protocol.signing import PublicKey, SigningKey


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit computed and found. `coverage` is this node's own, former audits included."""

    artifact: ArtifactId
    blocks: tuple[int, ...]
    total_blocks: int
    logits: bool
    wrong: tuple[Wrong, ...]
    tokens: int
    seconds: float
    tolerated: tuple[Difference, ...]
    coverage: Coverage | None
    settled: tuple[Settlement, ...]

    @property
    def passed(self) -> bool:
        return not self.wrong

    @property
    def first_wrong(self) -> int | None:
        """The block from which on nothing can be relied on."""
        return self.wrong[0].block if self.wrong else None

    @property
    def exactly(self) -> bool:
        """True when every block before the first wrong one was found right, so that the fault begins there."""
        first = self.first_wrong
        return first is not None and set(range(min(first, self.total_blocks))) <= set(self.blocks)

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "artifact": str(self.artifact),
            "passed": self.passed,
            "blocks": list(self.blocks),
            "total_blocks": self.total_blocks,
            "logits": self.logits,
            "wrong": [wrong.as_dict() for wrong in self.wrong],
            "from_block": self.first_wrong,
            "begins_there": self.exactly,
            "tokens": self.tokens,
            "seconds": round(self.seconds, 6),
            "tolerated": [difference.field for difference in self.tolerated],
            "own_percent": None if self.coverage is None else self.coverage.percent,
            "settled": [settlement.as_dict() for settlement in self.settled],
        }


def audit(
    store: Store,
    engine: Engine,
    signer: SigningKey,
    artifact: ArtifactId,
    selection: Selection | None = None,
    *,
    accept: str = "equal",
    trusted: Collection[PublicKey] = (),
    progress: Progress = silent,
) -> AuditReport:
    """Recompute blocks of a stored artifact, keep a signed attestation of the outcome beside it.

    Blocks about which there is an unsettled divergence are always among them; recomputing them settles it.
    An id that is not here but stands in a divergence means the block in dispute of the artifact that is here.
    Of `trusted` those are named that have signed what turns out wrong.

    Raises:
        NotFoundError: `store.unknown_artifact`.
        MismatchError: `mismatch.compatibility`, `mismatch.numerics`, `mismatch.canary`, `mismatch.layout`: this host
            cannot compute these bytes.
        StoreError: `store.incomplete`; IntegrityError: `integrity.*` for damaged chunks.
        UsageError: `audit.share`.
        EngineError: as `Engine.prefill`.
    """
    started = time.perf_counter()
    here, disputes = _subject(store, artifact)
    with store.hold(here) as stored:
        manifest = stored.manifest
        tolerated = engine.fingerprints.check(manifest.fingerprints, accept=accept)
        chosen = set() if here != artifact else set((selection or Selection()).blocks(manifest.layout))
        last = manifest.layout.blocks - 1
        blocks = sorted(chosen | {min(record.divergence.block, last) for record in disputes})
        found = recompute(engine, store, stored, blocks, progress)
        blocks = found.blocks(last + 1)
        numerics = engine.fingerprints.numerics.digest
        settled: tuple[Settlement, ...] = ()
        if not tolerated:  # other arithmetic would prove nobody wrong
            settled = tuple(settle(store.evidence, record, found, numerics, signer, trusted) for record in disputes)
        coverage = _attest(store, engine, signer, stored, blocks, found)
    return AuditReport(
        artifact=here,
        blocks=tuple(blocks),
        total_blocks=manifest.layout.blocks,
        logits=last in blocks,
        wrong=tuple(found.wrong),
        tokens=found.tokens,
        seconds=time.perf_counter() - started,
        tolerated=tuple(tolerated),
        coverage=coverage,
        settled=settled,
    )


def _subject(store: Store, artifact: ArtifactId) -> tuple[ArtifactId, list[StoredDivergence]]:
    """The artifact that can be recomputed here, and the open divergences that this settles."""
    disputes = [d for d in store.evidence.divergences() if artifact in d.artifacts and not d.settled]
    try:
        return store.artifact(artifact).artifact, disputes
    except NotFoundError:
        for record in disputes:
            for side in record.artifacts:
                whole = store.whole(side) if side != artifact else None
                if whole is not None and whole.extent is None:
                    return side, [d for d in disputes if side in d.artifacts]
        raise


def _attest(
    store: Store,
    engine: Engine,
    signer: SigningKey,
    stored: StoredArtifact,
    blocks: Sequence[int],
    found: Findings,
) -> Coverage | None:
    """Sign and keep what was found, former findings of this node included; its own coverage now."""
    manifest, evidence = stored.manifest, store.evidence
    numerics = engine.fingerprints.numerics.digest
    own = [signer.public]
    covered, logits = set(blocks), manifest.layout.blocks - 1 in blocks
    differs = None
    if found.wrong:
        differs = Discrepancy(found.wrong[0].leaf, found.wrong[0].found)
    else:
        for held in evidence.signed(manifest, own):
            if held.attestation.differs is None and held.attestation.numerics == numerics:
                covered |= set(held.attestation.audited())
                logits = logits or held.attestation.logits
    attestation = Attestation.of(stored.artifact, numerics, covered, logits=logits, differs=differs)
    envelope = attestation.seal(signer)
    evidence.add_attestation(envelope, own)
    if attestation.refutes(manifest):
        evidence.refute(envelope)
    elif differs is None:
        _withdraw(store, stored.artifact, found)
    return Coverage.of(manifest.layout, evidence.signed(manifest, own))


def _withdraw(store: Store, artifact: ArtifactId, found: Findings) -> None:
    """A leaf that this node once computed otherwise and now finds right was its own fault."""
    former = store.evidence.refutation(artifact)
    if former is None or former.attestation.differs is None:
        return
    leaf = former.attestation.differs.leaf
    if any(leaf in leaves for leaves in found.leaves.values()):
        store.evidence.forget_refutation(artifact)
