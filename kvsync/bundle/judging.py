"""May what a bundle holds be taken? The rules are those for a pull, and so are their words and codes.

exporter    a trusted signer's or a pinned peer's key has signed the index      bundle.exporter
admit       signer, size, fingerprints, before tables are read                  as a pull
judge       audits, audited, signers, divergence, names, before a chunk is read
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kvsync.config import Settings
from kvsync.errors import NotFoundError, UsageError
from kvsync.keys import NodeKeys, PeerBook, TrustList
from kvsync.peer.vouching import Vouching, trusted_only
from kvsync.store import Store
from kvsync.store.attestations import judged
from kvsync.store.extent import Extent
from kvsync.sync.policy import Policies
from kvsync_protocol import ref as ref_format
from kvsync_protocol.bundle import BundledArtifact
from kvsync_protocol.divergence import Described
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, MismatchError, TrustError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.successor import PEER, SIGNER


@dataclass
class Candidate:
    """An artifact of a bundle: admitted first, then with its tables, then judged."""

    manifest: Manifest
    envelope: Envelope
    extent: Extent | None
    policies: Policies
    leaves: bytes = b""
    tokens: bytes = b""
    table: LeafTable = field(default_factory=lambda: LeafTable(()))
    attestations: list[Envelope] = field(default_factory=list)
    refs: list[tuple[Ref, Envelope]] = field(default_factory=list)

    @property
    def positions(self) -> tuple[int, ...] | None:
        return None if self.extent is None else self.extent.positions

    @property
    def size(self) -> int:
        return self.manifest.tree.total_bytes if self.extent is None else self.extent.bytes

    def described(self) -> Described:
        """With its token ids read anew; they are kept as bytes."""
        return Described(self.envelope, self.manifest, self.table, self.manifest.check_tokens(self.tokens))


class Judge:
    """One import's. By the trust list as it is when asked."""

    def __init__(
        self,
        store: Store,
        trust: TrustList,
        keys: NodeKeys,
        settings: Settings,
        fingerprints: Fingerprints | None,
        *,
        dry_run: bool,
    ) -> None:
        self._store = store
        self._trust = trust
        self._keys = keys
        self._settings = settings
        self._fingerprints = fingerprints
        self._dry_run = dry_run

    def exporter(self, envelope: Envelope, payload_type: str) -> tuple[VerifiedPayload, str]:
        """The index, and who packed it. Raises TrustError `bundle.exporter`, `trust.payload_type`."""
        known = self._known()
        try:
            verified = envelope.verify(payload_type, known)
        except TrustError as error:
            if error.code == "trust.payload_type":
                raise
            raise TrustError(
                "bundle.exporter",
                "packed by nobody who is known here, or changed since",
                hint="kvsync peer add, or kvsync trust add, once you know whose key it is",
                claimed_key_ids=sorted({s.key_id for s in envelope.signatures if s.key_id}),
            ) from error
        return verified, known[verified.signers[0]]

    def _known(self) -> dict[PublicKey, str]:
        """Keys that may sign an index, with their names: signers that count, pinned peers, and this node itself."""
        now, own = self._trust.standing(), self._keys.peer.public
        named = {key: signer.name for signer in self._trust.signers() for key in now.chain(SIGNER, signer.key)}
        counting = self._trust.keys()
        found = {key: named.get(key, "this node") for key in counting}
        found |= {key: peer.name for peer in PeerBook(self._trust.home).peers() for key in peer.keys}
        found |= dict.fromkeys((*now.current(PEER, own), *now.before(PEER, own)), "this node")
        return found

    def admit(self, bundled: BundledArtifact, envelope: Envelope) -> Candidate:
        """By what is signed about it. Raises as `Policies.signer`, `size` and `model`; MalformedError `extent.*`."""
        policies, trusted = Policies(dry_run=self._dry_run), self._trust.keys()
        manifest = policies.signer(envelope, trusted, bundled.artifact)
        extent = None if bundled.positions is None else _extent(manifest, bundled.positions)
        found = Candidate(manifest, envelope.endorsed(trusted), extent, policies)
        policies.size(found.size, self._settings.max_artifact_bytes)
        policies.model(self._fingerprints, manifest, self._settings.accept)
        return found

    def judge(self, candidates: Sequence[Candidate]) -> None:
        """By what is known of the bytes, here and in the bundle itself. Raises PolicyError, TrustError, as a pull."""
        for candidate in candidates:
            self._judge(candidate, (other for other in candidates if other is not candidate))
            self._names(candidate)

    def _judge(self, candidate: Candidate, others: Iterable[Candidate]) -> None:
        vouching = Vouching(self._store, self._trust, self._settings)
        manifest, policies = candidate.manifest, candidate.policies
        candidate.attestations = list(trusted_only(candidate.attestations, vouching.keys))
        try:
            held = self._store.attestations(manifest.artifact)
        except NotFoundError:
            held = []
        signed = judged([*held, *candidate.attestations], vouching.keys, manifest)
        signers = candidate.envelope.signers(vouching.keys)
        described = candidate.described()
        policies.ask("audits", lambda: vouching.refutation(manifest, signed))
        policies.ask("audited", lambda: vouching.audited(manifest, signers, signed))
        detail = vouching.enough(candidate.envelope)
        if detail is not None:
            policies.allow("signers", detail)
        else:
            policies.ask("signers", lambda: vouching.signers(described, self._related(described, others)))
        policies.ask("divergence", lambda: vouching.divergence(described, keep=not self._dry_run))

    def _related(self, described: Described, others: Iterable[Candidate]) -> Iterator[Described]:
        yield from self._store.evidence.related(described)
        for other in others:
            yield other.described()

    def _names(self, candidate: Candidate) -> None:
        for ref, envelope in candidate.refs:
            candidate.policies.ref(envelope, self._trust, ref.name, self._store)

    def named(self, bundled: BundledArtifact, envelope: Envelope) -> tuple[Ref, Envelope]:
        """What a ref says, nobody's word judged. Raises MalformedError `ref.*`; MismatchError `mismatch.ref`."""
        ref = Ref.parse(VerifiedPayload(ref_format.PAYLOAD_TYPE, envelope.payload, ()))
        if ref.artifact != bundled.artifact:
            raise MismatchError("mismatch.ref", "the name points at another artifact")
        return ref, envelope

    def keep(self, candidate: Candidate) -> None:
        """Keep what trusted keys say about an artifact that is here now: findings, and names.

        Raises:
            TrustError: `trust.*` when somebody's trust was withdrawn, or a name moved on, meanwhile.
        """
        keys = self._trust.keys()
        for envelope in candidate.attestations:
            try:
                self._store.add_attestation(envelope, keys)
            except (MalformedError, MismatchError, TrustError, NotFoundError):
                continue  # of another artifact, malformed, or withdrawn meanwhile: it says nothing here
        for ref, envelope in candidate.refs:
            _, still = self._trust.judge_ref(envelope)
            self._store.set_ref(ref, envelope, *still, owners=self._trust.owners(ref.name, still))


def _extent(manifest: Manifest, positions: Collection[int]) -> Extent | None:
    """Raises MalformedError `extent.range` for positions at which no graft can begin."""
    try:
        return Extent.of(manifest.layout, positions)
    except UsageError as error:
        raise MalformedError("extent.range", error.message) from error
