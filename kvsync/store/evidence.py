"""`Evidence`: what is known here about whether an artifact's bytes are right, beside whether they are whole.

    attestations   other auditors' findings and our own, beside the artifact
    refutations    what this node itself has computed otherwise; such artifacts are neither matched nor grafted
    divergences    pairs of artifacts that cannot both be right, with both signatures

Knows no policy: whose word counts, and what is refused for lack of it, is the caller's to say.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

from kvsync.errors import NotFoundError, PolicyError, StoreError
from kvsync.store import records
from kvsync.store.artifacts import is_damage, unknown
from kvsync.store.attestations import Refutation
from kvsync.store.divergences import StoredDivergence
from kvsync.store.parts import Parts
from kvsync.store.stored import LEAVES
from kvsync_protocol.attestation import PAYLOAD_TYPE, Attestation, Discrepancy, Signed
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey
from kvsync_protocol.divergence import Described, Divergence, first_divergence
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import LEAF_ENTRY_BYTES, MAX_LEAF_TABLE_BYTES
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey


class Evidence:
    """Part of a `Store`, which makes it. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    # attestations

    def attestations(self, artifact: ArtifactId) -> list[Envelope]:
        """All that lie beside an artifact, nobody's word judged. Raises NotFoundError `store.unknown_artifact`."""
        return self._parts.attestations.envelopes(artifact)

    def signed(self, manifest: Manifest, keys: Collection[PublicKey]) -> list[Signed]:
        """Attestations by `keys` about a stored artifact. Raises as `attestations`."""
        return self._parts.attestations.signed(manifest, keys)

    def add_attestation(self, envelope: Envelope, keys: Collection[PublicKey]) -> bool:
        """Keep an attestation of a stored artifact, with its signatures by `keys` and no others.

        False when it adds nothing, or when its signers have more than enough here already.

        Raises:
            TrustError: `trust.untrusted_signer` when none of `keys` has signed, `trust.payload_type`.
            MalformedError: as `Attestation.parse`; MismatchError: `mismatch.attestation`.
            NotFoundError: `store.unknown_artifact`.
        """
        envelope.verify(PAYLOAD_TYPE, keys)
        artifact = Attestation.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ())).artifact
        with self._parts.index.writing() as db:
            if not records.is_recorded(db, artifact):
                raise unknown(artifact)
            manifest = self._parts.files.load(artifact, pinned=False).manifest
            added = self._parts.attestations.add(envelope, manifest, keys)
            if added:
                records.set_meta_bytes(db, artifact, self._parts.files.meta_bytes(artifact))
        return added

    # refutations

    def refute(self, envelope: Envelope) -> None:
        """Remember that an audit of this node's own has found other bytes, whether or not the artifact is here."""
        with self._parts.index.writing():
            self._parts.refuted.add(envelope)

    def forget_refutation(self, artifact: ArtifactId) -> None:
        """Undo `refute`, for an artifact that was audited again with equal bytes."""
        former = self._parts.refuted.get(artifact)
        with self._parts.index.writing() as db:
            self._parts.refuted.remove(artifact)
            if former is not None and records.is_recorded(db, artifact):
                self._parts.attestations.drop(artifact, former.envelope)
                records.set_meta_bytes(db, artifact, self._parts.files.meta_bytes(artifact))

    def refutation(self, artifact: ArtifactId) -> Refutation | None:
        """Raises StoreError `store.refutation_damaged`."""
        return self._parts.refuted.get(artifact)

    def check(self, artifact: ArtifactId) -> None:
        """Raises PolicyError `evidence.refuted` for an artifact that an audit of this node's own has refuted."""
        refutation = self.refutation(artifact)
        if refutation is not None:
            raise refuted_error(artifact, refutation.attestation)

    def refuted(self) -> dict[ArtifactId, Discrepancy]:
        """Everything that this node has found to be wrong, and where it begins to be."""
        found = {}
        for artifact in self._parts.refuted.ids():
            refutation = self._parts.refuted.get(artifact)
            if refutation is not None and refutation.attestation.differs is not None:
                found[artifact] = refutation.attestation.differs
        return found

    # divergences

    def divergences(self) -> list[StoredDivergence]:
        """All records, by name; damaged ones are left to fsck."""
        return self._parts.divergences.all(self.refuted())

    def add_divergence(self, divergence: Divergence) -> bool:
        """Keep a record for good; False when there is one of these artifacts. Raises StoreError `store.full`."""
        with self._parts.index.writing():
            return self._parts.divergences.add(divergence)

    def describe(self, artifact: ArtifactId) -> Described:
        """An artifact's description, checked. Raises NotFoundError `store.unknown_artifact`; as `Store.artifact`."""
        stored, table, tokens = self._parts.files.verify(artifact)
        return Described(stored.envelope, stored.manifest, table, tokens)

    def related(self, described: Described) -> Iterator[Described]:
        """Other artifacts here with which this one shares the computation of a block; damaged ones left out."""
        manifest = described.manifest
        for artifact in self.related_ids(described):
            if artifact != manifest.artifact:
                yield from self._described(artifact)

    def _described(self, artifact: ArtifactId) -> Iterator[Described]:
        """The artifact's description, unless it is damaged or gone."""
        try:
            yield self.describe(artifact)
        except (NotFoundError, ProtocolError, StoreError) as error:
            if not isinstance(error, NotFoundError) and not is_damage(error):
                raise

    def contradictions(self, described: Described) -> Iterator[tuple[Divergence, Described]]:
        """Artifacts here that have other bytes for a computation that they share with this one.

        Leaf tables tell at a glance, so what agrees is neither parsed nor verified, however much of it there is.
        """
        own, ours, keys = described.manifest.artifact, described.leaves.encode(), list(described.keys())
        for artifact in self.related_ids(described):
            if artifact == own or not self._may_differ(artifact, described, ours, keys):
                continue
            for other in self._described(artifact):
                block = first_divergence(described, other)
                if block is not None:
                    yield Divergence.of(block, described, other), other

    def _may_differ(self, artifact: ArtifactId, described: Described, ours: bytes, keys: Sequence[PrefixKey]) -> bool:
        """Whether both compute the block of the first leaf that is not alike.

        Prefix keys are a chain: where a block's is not shared, no later one is. A partial last block and the final
        logits are shared exactly with an artifact of equal tokens.
        """
        try:
            theirs = self._parts.files.read(artifact, LEAVES, MAX_LEAF_TABLE_BYTES)
        except (NotFoundError, ProtocolError, StoreError):
            return True  # left to whoever reads all of it
        size = LEAF_ENTRY_BYTES
        places = range(0, len(ours), size)
        first = next((at // size for at in places if ours[at : at + size] != theirs[at : at + size]), None)
        if first is None:
            return False
        block = next(number for number, spans in enumerate(described.spans) if spans and spans[-1].index >= first)
        key = keys[block] if block < described.manifest.layout.full_blocks else None
        with self._parts.index.reading() as db:
            return records.shares(db, artifact, key, described.manifest.tokens.digest)

    def related_ids(self, described: Described) -> list[ArtifactId]:
        """As `related`, names only, the most recent first; the artifact itself may be among them."""
        manifest = described.manifest
        keys = list(islice(described.keys(), min(1, manifest.layout.full_blocks)))
        with self._parts.index.reading() as db:
            return records.find_related(db, keys, manifest.tokens.digest, manifest.fingerprints)


def refuted_error(artifact: ArtifactId, attestation: Attestation) -> PolicyError:
    """`evidence.refuted`, for an artifact that an audit has found to be wrong."""
    leaf = attestation.differs.leaf if attestation.differs is not None else None
    return PolicyError(
        "evidence.refuted",
        f"an audit has found other bytes than artifact {artifact.short} has, at leaf {leaf}",
        hint="take another signer's artifact of the same document; kvsync audit looks again",
        artifact=artifact,
        leaf=leaf,
    )


def by_name(found: Iterable[StoredDivergence], name: str) -> StoredDivergence:
    """The divergence whose name is or begins with `name`, or that is about an artifact of this id.

    Raises:
        NotFoundError: `divergence.unknown`.
    """
    digits = name.removeprefix("sha256:")
    for record in found:
        names: tuple[Digest, ...] = (record.name, *record.artifacts)
        if len(digits) >= 8 and any(digest.hex.startswith(digits) for digest in names):
            return record
    raise NotFoundError("divergence.unknown", f"no divergence here is named {name!r}", hint="kvsync divergences ls")
