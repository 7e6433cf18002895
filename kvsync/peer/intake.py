"""What this node takes from peers that push: judged by its own trust list and limits, published at the end.

Knows no HTTP; the control lane calls it in a thread.
"""

from __future__ import annotations

import logging
import time

from kvsync.config import Settings
from kvsync.errors import NotFoundError, PolicyError
from kvsync.keys import TrustList
from kvsync.peer.access import Access
from kvsync.peer.offers import Offers, unknown_offer
from kvsync.peer.vouching import Vouching, trusted_only
from kvsync.store import Store
from kvsync_protocol.attestation import PAYLOAD_TYPE as ATTESTATION_TYPE
from kvsync_protocol.attestation import Attestation
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.divergence import Described
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MismatchError, ProtocolError
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.messages import Accepted, Attestations, Commit
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey

log = logging.getLogger(__name__)


class Intake:
    """Begins and ends pushes. Safe for several threads."""

    def __init__(self, store: Store, offers: Offers, trust: TrustList, settings: Settings, access: Access) -> None:
        self._store = store
        self._access = access
        self._offers = offers
        self._trust = trust
        self._settings = settings

    def judge(self, peer: PublicKey, body: bytes) -> Accepted:
        """Open an offer for an envelope, or add its signatures to what is here already.

        Whoever may not see the artifact is asked for all of it, as if nothing of it were here.

        Raises:
            MalformedError, VersionError: as `Envelope.parse` and `Manifest.parse`.
            TrustError: `trust.untrusted_signer`, `trust.payload_type`.
            PolicyError: `policy.size`, `evidence.refuted`; UnavailableError: `offer.too_many`.
        """
        envelope, trusted = Envelope.parse(body), self._trust.keys()
        manifest = Manifest.parse(envelope.verify(PAYLOAD_TYPE, trusted))
        if manifest.tree.total_bytes > self._settings.max_artifact_bytes:
            raise PolicyError(
                "policy.size", f"larger than {self._settings.max_artifact_bytes} bytes", hint="max_artifact_bytes"
            )
        self._store.evidence.check(manifest.artifact)
        shown = self._access.knows(peer, manifest.artifact)
        stored = self._store.whole(manifest.artifact)
        if not shown or stored is None or stored.extent is not None:
            self._offers.open(peer, envelope.endorsed(trusted), manifest, secretive=not shown)
            return Accepted(manifest.artifact, complete=False)
        self._store.add_signatures(envelope, trusted)
        return Accepted(manifest.artifact, complete=True)

    def vouch(self, described: Described) -> None:
        """Refuse what is offered for lack of evidence, or because of evidence against it.

        Attestations come after the artifact, so a node that demands audits takes none by push.

        Raises:
            PolicyError: `policy.audited`, `policy.signers`, `divergence.unsettled`, `evidence.refuted`.
        """
        judge, manifest = Vouching(self._store, self._trust, self._settings), described.manifest
        judge.audited(manifest, described.envelope.signers(judge.keys), ())
        if judge.enough(described.envelope) is None:
            judge.signers(described, self._store.evidence.related(described))
        judge.divergence(described, keep=True)

    def attest(self, artifact: ArtifactId, body: bytes) -> None:
        """Keep what trusted auditors say about an artifact that is here; what others say is passed over.

        Raises:
            MalformedError: as `Attestations.parse`.
            NotFoundError: `store.unknown_artifact`.
        """
        keys = self._trust.keys()
        self._store.artifact(artifact)
        for envelope in trusted_only(Attestations.parse(body).envelopes, keys):
            try:
                Attestation.parse(envelope.verify(ATTESTATION_TYPE, keys)).about(artifact)
                self._store.add_attestation(envelope, keys)
            except ProtocolError as error:
                log.info("an attestation about %s is not kept: %s", artifact, error.code)

    def commit(self, peer: PublicKey, artifact: ArtifactId, commit: Commit) -> Accepted:
        """Publish what was offered, then the ref; a ref alone may be sent for what is here already.

        Raises:
            NotFoundError: `offer.unknown`, or `store.unknown_artifact` for a ref without an offer.
            TrustError: `trust.*`; MismatchError: `mismatch.ref`; StoreError: `store.incomplete`, `store.full`.
        """
        trusted = self._trust.keys()
        ref, signers = self._judge_ref(artifact, commit)
        try:
            offer = self._offers.find(peer, artifact)
        except NotFoundError:
            if ref is None:
                raise unknown_offer() from None  # whether it is here is not told to whoever names it
            self._access.require(peer, artifact)
            self._store.artifact(artifact)
        else:
            with offer.use():
                offer.envelope.verify(PAYLOAD_TYPE, trusted)  # nobody withdrew it since it was offered
                offer.publish()
            self._offers.end(peer, artifact)
        if commit.ref is not None and ref is not None:
            self._store.set_ref(ref, commit.ref, *signers, owners=self._trust.owners(ref.name, signers))
        return Accepted(artifact, complete=True)

    def _judge_ref(self, artifact: ArtifactId, commit: Commit) -> tuple[Ref | None, tuple[PublicKey, ...]]:
        if commit.ref is None:
            return None, ()
        ref, signers = self._trust.judge_ref(commit.ref)
        ref.check_fresh(int(time.time()))
        if ref.artifact != artifact:
            raise MismatchError("mismatch.ref", "the name points at another artifact")
        return ref, signers
