"""What this node takes from peers that push: judged by its own trust list and limits, published at the end.

Knows no HTTP; the control lane calls it in a thread.
"""

from __future__ import annotations

import time

from kvsync.config import Settings
from kvsync.errors import NotFoundError, PolicyError
from kvsync.keys import TrustList
from kvsync.peer.offers import Offers, unknown_offer
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.messages import Accepted, Commit
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey


class Intake:
    """Begins and ends pushes. Safe for several threads."""

    def __init__(self, store: Store, offers: Offers, trust: TrustList, settings: Settings) -> None:
        self._store = store
        self._offers = offers
        self._trust = trust
        self._settings = settings

    def judge(self, peer: PublicKey, body: bytes) -> Accepted:
        """Open an offer for an envelope, or add its signatures to what is here already.

        Raises:
            MalformedError, VersionError: as `Envelope.parse` and `Manifest.parse`.
            TrustError: `trust.untrusted_signer`, `trust.payload_type`.
            PolicyError: `policy.size`; UnavailableError: `offer.too_many`.
        """
        envelope, trusted = Envelope.parse(body), self._trust.keys()
        manifest = Manifest.parse(envelope.verify(PAYLOAD_TYPE, trusted))
        if manifest.tree.total_bytes > self._settings.max_artifact_bytes:
            raise PolicyError(
                "policy.size", f"larger than {self._settings.max_artifact_bytes} bytes", hint="max_artifact_bytes"
            )
        if self._store.whole(manifest.artifact) is None:
            self._offers.open(peer, envelope.endorsed(trusted), manifest)
            return Accepted(manifest.artifact, complete=False)
        self._store.add_signatures(envelope, trusted)
        return Accepted(manifest.artifact, complete=True)

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
