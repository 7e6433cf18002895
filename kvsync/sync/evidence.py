"""What is known of the bytes of one artifact that is being pulled: here, at the peer, and what follows from it.

    learn          attestations, there and here       ─► judge_audits   refuted? audited enough?
    leaf table and tokens (the caller's to fetch)     ─► judge_bytes    signers enough? a divergence?
    keep           what trusted auditors say, beside the artifact

A peer's list is a hint: what no trusted key has signed says nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kvsync.config import Settings
from kvsync.errors import NotFoundError
from kvsync.keys import TrustList
from kvsync.peer.client import PeerClient
from kvsync.peer.vouching import Vouching, trusted_only
from kvsync.store import Store
from kvsync.store.attestations import judged
from kvsync.sync.policy import Policies
from kvsync_protocol.attestation import Signed
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.divergence import Described
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MismatchError, ProtocolError
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest

MAX_OTHERS: Final = 16
"""Further artifacts of the peer's whose description is read to find more signers."""


class ArtifactEvidence:
    """One pull's view of the evidence. A dry run keeps nothing."""

    def __init__(
        self, store: Store, trust: TrustList, settings: Settings, client: PeerClient, *, dry_run: bool
    ) -> None:
        self._store = store
        self._trust = trust
        self._settings = settings
        self._client = client
        self._dry_run = dry_run
        self._envelopes: list[Envelope] = []
        self._signed: list[Signed] = []

    async def learn(self, manifest: Manifest, theirs: Sequence[Envelope], *, here: bool) -> None:
        """Take the peer's attestations, and this node's own; keep the former where the artifact is here."""
        keys = self._trust.keys()
        self._envelopes = await asyncio.to_thread(lambda: list(trusted_only(theirs, keys)))
        if here and not self._dry_run:
            await asyncio.to_thread(self.keep)
        held = await asyncio.to_thread(self._held, manifest.artifact)
        self._signed = await asyncio.to_thread(judged, [*held, *self._envelopes], keys, manifest)

    def _held(self, artifact: ArtifactId) -> list[Envelope]:
        try:
            return self._store.attestations(artifact)
        except NotFoundError:
            return []

    async def judge_audits(self, policies: Policies, envelope: Envelope, manifest: Manifest) -> None:
        """Raises PolicyError `evidence.refuted`, `policy.audited`, except in a dry run."""
        judge = Vouching(self._store, self._trust, self._settings)
        signers = envelope.signers(judge.keys)
        await asyncio.to_thread(policies.ask, "audits", lambda: judge.refutation(manifest, self._signed))
        await asyncio.to_thread(policies.ask, "audited", lambda: judge.audited(manifest, signers, self._signed))

    async def judge_bytes(self, policies: Policies, described: Described) -> None:
        """Raises PolicyError `policy.signers`, `divergence.unsettled`, `evidence.refuted`, except in a dry run."""
        judge = Vouching(self._store, self._trust, self._settings)
        detail = judge.enough(described.envelope)
        if detail is not None:
            policies.allow("signers", detail)
        else:
            others = await self._others(described)
            await asyncio.to_thread(policies.ask, "signers", lambda: judge.signers(described, others))
        keep = not self._dry_run
        await asyncio.to_thread(policies.ask, "divergence", lambda: judge.divergence(described, keep=keep))

    def keep(self) -> None:
        """Keep what was learnt beside the artifact, which is here now."""
        keys = self._trust.keys()
        for envelope in self._envelopes:
            try:
                self._store.add_attestation(envelope, keys)
            except (ProtocolError, NotFoundError):
                continue  # of another artifact, malformed, or withdrawn meanwhile: it says nothing here

    async def _others(self, described: Described) -> list[Described]:
        """Artifacts here and at the peer that share a computation with this one."""
        found = await asyncio.to_thread(lambda: list(self._store.evidence.related(described)))
        known = {other.manifest.artifact for other in found} | {described.manifest.artifact}
        for artifact in (await self._client.related(described.manifest.artifact))[:MAX_OTHERS]:
            if artifact not in known:
                other = await self._describe(artifact)
                if other is not None:
                    found.append(other)
        return found

    async def _describe(self, artifact: ArtifactId) -> Described | None:
        """Another artifact of the peer's, if a trusted key has signed it and its tables are the signed ones."""
        client, keys = self._client, self._trust.keys()
        try:
            envelope = (await client.envelope(artifact)).endorsed(keys)
            manifest = Manifest.parse(envelope.verify(PAYLOAD_TYPE, keys))
            if manifest.artifact != artifact:
                raise MismatchError("mismatch.artifact", "the peer sent another artifact than the one asked for")
            table = await asyncio.to_thread(manifest.check_leaves, await client.leaves(manifest))
            tokens = await asyncio.to_thread(manifest.check_tokens, await client.tokens(manifest))
        except (ProtocolError, NotFoundError):
            return None
        return Described(envelope, manifest, table, tokens)
