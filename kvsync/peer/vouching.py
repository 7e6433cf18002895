"""May an artifact be taken, by what is known of its bytes? Asked of pulls and of pushes alike, before a chunk moves.

    refutation   an audit has found other bytes                       evidence.refuted
    audited      require_audited_percent of the blocks recomputed     policy.audited
    signers      require_signers distinct signers of equal bytes      policy.signers
    divergence   another artifact here says otherwise, unsettled      divergence.unsettled

Each question is answered with a detail for the report, or with its error. Distinct keys count, and the keys that
follow each other in a rotation are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from kvsync.config import Settings
from kvsync.errors import PolicyError
from kvsync.keys import TrustList
from kvsync.store import Store
from kvsync.store.evidence import refuted_error
from kvsync_protocol.attestation import Coverage, Signed, independent
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.divergence import Described, Divergence, equal_blocks
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.successor import SIGNER


class Vouching:
    """One judgement, by the keys that are trusted now."""

    def __init__(self, store: Store, trust: TrustList, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self.keys = trust.keys()
        self._standing = trust.standing()

    def distinct(self, keys: Iterable[PublicKey]) -> frozenset[PublicKey]:
        """Each signer once, by its newest key."""
        return frozenset(self._standing.chain(SIGNER, key)[-1] for key in keys)

    def refutation(self, manifest: Manifest, found: Sequence[Signed]) -> str:
        """Raises PolicyError `evidence.refuted` when an audit of this node's own or of a trusted key says so."""
        self._store.evidence.check(manifest.artifact)
        for signed in found:
            if signed.attestation.refutes(manifest):
                raise refuted_error(manifest.artifact, signed.attestation)
        return "no audit has refuted it"

    def audited(self, manifest: Manifest, signers: Iterable[PublicKey], found: Iterable[Signed]) -> str:
        """Raises PolicyError `policy.audited`. What only its own signer has audited counts for nothing here."""
        wanted, vouching = self._settings.require_audited_percent, self.distinct(signers)
        named = (Signed(s.attestation, tuple(self.distinct(s.signers))) for s in found)
        coverage = Coverage.of(manifest.layout, independent(named, vouching))
        detail = f"{coverage.percent} % of {coverage.blocks} blocks audited by {len(coverage.signers)} others"
        if coverage.percent < wanted:
            raise PolicyError(
                "policy.audited",
                f"{detail}, {wanted} % needed",
                hint="kvsync audit where it is, by a key that is trusted here; or a lower require_audited_percent",
                percent=coverage.percent,
                needed=wanted,
            )
        return detail

    def enough(self, envelope: Envelope) -> str | None:
        """The detail when the artifact itself has signers enough; None when others must be asked."""
        count = len(self.distinct(envelope.signers(self.keys)))
        return f"{count} distinct" if count >= self._settings.require_signers else None

    def signers(self, described: Described, others: Iterable[Described]) -> str:
        """Count signers block by block: those of other artifacts vouch for what they share, byte for byte.

        Raises:
            PolicyError: `policy.signers`.
        """
        needed, refuted = self._settings.require_signers, self._store.evidence.refuted()
        own = self.distinct(described.envelope.signers(self.keys))
        vouching = [set(own) for _ in range(described.manifest.layout.blocks + 1)]
        for other in others:
            keys = self.distinct(other.envelope.signers(self.keys))
            if keys and other.manifest.artifact not in refuted:
                for block in equal_blocks(described, other):
                    vouching[block] |= keys
            if min(map(len, vouching)) >= needed:
                break
        least = min(map(len, vouching))
        if least < needed:
            raise PolicyError(
                "policy.signers",
                f"{least} distinct trusted signers of these bytes, {needed} needed",
                hint="kvsync trust add further signers that have computed the same, or a lower require_signers",
                signers=least,
                needed=needed,
            )
        return f"{least} distinct, other artifacts with equal bytes counted"

    def divergence(self, described: Described, *, keep: bool) -> str:
        """Ask what here contradicts it; with `keep`, keep the evidence.

        An artifact that has been refuted, or that nobody trusted vouches for any more, is no reason to refuse.

        Raises:
            PolicyError: `divergence.unsettled`, `evidence.refuted` when a settled one speaks against it too.
        """
        refuted = self._store.evidence.refuted()
        unsettled: list[tuple[Divergence, Described]] = []
        for record, other in self._store.evidence.contradictions(described):
            block = record.block
            if keep:
                self._store.evidence.add_divergence(record)
            if other.manifest.artifact in refuted:
                self._check_found(described, other.manifest.artifact, block)
            elif other.envelope.signers(self.keys):
                unsettled.append((record, other))
        if unsettled:
            raise self._unsettled(described.manifest, *unsettled[0])
        return "nothing here says otherwise"

    def _check_found(self, described: Described, loser: ArtifactId, block: int) -> None:
        """The bytes that refuted the other must be this one's, where both are one computation."""
        refutation = self._store.evidence.refutation(loser)
        if refutation is None or refutation.attestation.differs is None:
            return
        leaf, found = refutation.attestation.differs.leaf, refutation.attestation.differs.found
        indices = {span.index for span in described.spans[block]}
        if leaf in indices and described.leaves.leaves[leaf].digest != found:
            raise refuted_error(described.manifest.artifact, refutation.attestation)

    def _unsettled(self, manifest: Manifest, record: Divergence, other: Described) -> PolicyError:
        here: Digest = other.manifest.artifact
        return PolicyError(
            "divergence.unsettled",
            f"block {record.block} is not what artifact {here.short} here has for the same computation",
            hint="kvsync audit either of the two: it recomputes that block and shows who is right",
            divergence=record.name,
            block=record.block,
            artifact=manifest.artifact,
            here=here,
            here_signers=[str(key) for key in other.envelope.signers(self.keys)],
        )


def trusted_only(envelopes: Iterable[Envelope], keys: frozenset[PublicKey]) -> Iterator[Envelope]:
    """Envelopes with their signatures by `keys`; those without are left out.

    Only keys that an envelope names are tried: of a long list of strangers' words each would cost every key a
    verification, and whoever wants to be heard can say who he is.
    """
    named = {key.key_id: key for key in keys}
    for envelope in envelopes:
        some = {named[s.key_id] for s in envelope.signatures if s.key_id in named}
        if some and envelope.signers(some):
            yield envelope.endorsed(some)
