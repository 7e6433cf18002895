"""Fetch one artifact from one peer: judge first, move then, publish at the end.

    hello ─► name ─► envelope ─► policies ─► leaves, tokens ─► draft ─► N streams ─► publish ─► name
             signed  signature,  size,       hashed            lock,    each chunk
             ref     then parse  fingerprints                  leases   verified

Whatever ends a pull early, verified chunks stay and the next pull fetches only the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from kvsync.config import Settings
from kvsync.errors import NotFoundError, UnavailableError
from kvsync.keys import NodeKeys, Peer, TrustList
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.client import PeerClient
from kvsync.progress import Progress, silent
from kvsync.store import PullDraft, Store
from kvsync.sync.choice import StreamEncoder
from kvsync.sync.evidence import ArtifactEvidence
from kvsync.sync.plan import Plan
from kvsync.sync.report import PullReport
from kvsync.sync.streams import Stream
from kvsync.sync.transfer import Transfer
from kvsync_protocol import manifest as manifest_format
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.divergence import Described
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.ref import Ref, check_name

_LOCK_SLICE_S: Final = 2.0
"""Waiting for another transfer of the same artifact happens in slices, between which we can be cancelled."""


async def pull(
    store: Store,
    trust: TrustList,
    peer: Peer,
    wanted: str,
    *,
    keys: NodeKeys,
    settings: Settings,
    fingerprints: Fingerprints | None,
    progress: Progress = silent,
    dry_run: bool = False,
) -> PullReport:
    """Fetch `wanted`, an artifact id or a name, from `peer`.

    `fingerprints` are those of the model it is for, or None for a host that merely carries it. A dry
    run changes nothing, and its report holds every policy's verdict.

    Raises:
        TrustError: `peer.identity`, `peer.refused`, `trust.untrusted_signer`, `trust.bad_signature`,
            `trust.rollback`, `trust.expired`, `trust.ref_owner`, `trust.name`, `peer.revoked`.
        PolicyError: `peer.role`, `policy.size`, `policy.audited`, `policy.signers`, `evidence.refuted`,
            `divergence.unsettled`.
        MismatchError: `mismatch.compatibility`, `mismatch.numerics`, `mismatch.canary`.
        IntegrityError: `integrity.*`, `bulk.size`, `codec.size`; MalformedError: `bulk.*`, `codec.*`,
            `message.*`, naming the peer that sent it.
        NotFoundError: `peer.unknown_name`, `store.unknown_artifact`, `peer.chunk_gone`.
        UnavailableError: `peer.unreachable`, `peer.closed`, `peer.stalled`, `peer.deadline`.
        StoreError: `store.full`, `store.quota`.
    """
    transfer = Transfer("pull", peer, keys, settings, progress, dry_run=dry_run)
    return await _Pull(transfer, store, trust).run(wanted, fingerprints)


class _Pull:
    """One pull's state."""

    def __init__(self, transfer: Transfer, store: Store, trust: TrustList) -> None:
        self._transfer = transfer
        self._store = store
        self._trust = trust
        self._ref: tuple[Ref, Envelope] | None = None

    async def run(self, wanted: str, fingerprints: Fingerprints | None) -> PullReport:
        transfer, policies, settings = self._transfer, self._transfer.policies, self._transfer.settings
        async with transfer.connected() as client:
            await client.hello()
            artifact = await self._resolve(client, wanted)
            envelope = await client.envelope(artifact)
            trusted = self._trust.keys()
            manifest = policies.signer(envelope, trusted, artifact)
            envelope = envelope.endorsed(trusted)  # nobody's heap of other signatures is kept
            policies.size(manifest, settings.max_artifact_bytes)
            policies.model(fingerprints, manifest, settings.accept)
            evidence = ArtifactEvidence(self._store, self._trust, settings, client, dry_run=transfer.dry_run)
            table = await asyncio.to_thread(self._leaves_here, manifest)
            if table is not None and not transfer.dry_run:
                await asyncio.to_thread(self._store.add_signatures, envelope, trusted)
            await evidence.learn(manifest, here=table is not None)
            await evidence.judge_audits(policies, envelope, manifest)
            if table is not None:
                plan = Plan(table.leaves, (), silent, transfer.stage)
            else:
                plan = await self._fetch(client, evidence, envelope, manifest)
            if self._ref is not None and not transfer.dry_run:
                await asyncio.to_thread(self._name, *self._ref)
        return transfer.report(PullReport, manifest, plan, self._ref[0].name if self._ref is not None else None)

    async def _fetch(
        self, client: PeerClient, evidence: ArtifactEvidence, envelope: Envelope, manifest: Manifest
    ) -> Plan:
        """Everything that is not here, published at the end; in a dry run what that would be."""
        transfer = self._transfer
        if not transfer.dry_run:
            transfer.open_ahead(client, manifest.tree.size)
        leaves = await client.leaves(manifest)
        table = await asyncio.to_thread(manifest.check_leaves, leaves)
        tokens = await client.tokens(manifest)
        ids = await asyncio.to_thread(manifest.check_tokens, tokens)
        await evidence.judge_bytes(transfer.policies, Described(envelope, manifest, table, ids))
        if transfer.dry_run:
            return Plan(table.leaves, await asyncio.to_thread(self._lacking, table), silent, transfer.stage)
        async with self._draft(envelope, manifest, leaves, tokens) as draft:
            missing = await asyncio.to_thread(draft.missing)
            plan = Plan(table.leaves, missing, transfer.progress, transfer.stage)
            layout = manifest.layout
            await transfer.move(
                client, plan, lambda connection: _PullStream(plan, connection, transfer, draft, layout)
            )
            envelope.verify(manifest_format.PAYLOAD_TYPE, self._trust.keys())  # nobody withdrew it meanwhile
            await asyncio.to_thread(draft.publish)
        await asyncio.to_thread(evidence.keep)
        return plan

    def _name(self, ref: Ref, envelope: Envelope) -> None:
        """Keep the name, by those of its signers that are still trusted."""
        _, still = self._trust.judge_ref(envelope)
        self._store.set_ref(ref, envelope, *still, owners=self._trust.owners(ref.name, still))

    async def _resolve(self, client: PeerClient, wanted: str) -> ArtifactId:
        """An id as it is; a name by the peer's signed ref."""
        try:
            return ArtifactId(Digest.parse(wanted))
        except MalformedError:
            check_name(wanted)
        found = (await client.refs(wanted)).refs
        if not found:
            raise NotFoundError(
                "peer.unknown_name", f"{client.peer.name} has nothing named {wanted!r}", hint="ask for its id instead"
            )
        ref = await asyncio.to_thread(self._transfer.policies.ref, found[0], self._trust, wanted, self._store)
        self._ref = ref, found[0]
        return ref.artifact

    def _leaves_here(self, manifest: Manifest) -> LeafTable | None:
        """The leaves of the artifact if all of it is here already; a damaged one is fetched again."""
        whole = self._store.whole(manifest.artifact)
        return None if whole is None else whole.leaves()

    def _lacking(self, table: LeafTable) -> list[int]:
        return [index for index, leaf in enumerate(table.leaves) if not self._store.has_chunk(leaf.digest)]

    @asynccontextmanager
    async def _draft(
        self, envelope: Envelope, manifest: Manifest, leaves: bytes, tokens: bytes
    ) -> AsyncIterator[PullDraft]:
        """The draft, once no other transfer on this host holds it."""

        def attempt() -> PullDraft | None:
            until = min(self._transfer.deadline.at, time.monotonic() + _LOCK_SLICE_S)
            try:
                return self._store.pull_draft(envelope, manifest, leaves, tokens, deadline=until)
            except UnavailableError as error:
                if error.code != "store.busy":
                    raise
                return None

        draft = None
        while draft is None:
            self._transfer.deadline.remaining()
            opening = asyncio.ensure_future(asyncio.to_thread(attempt))
            try:
                draft = await asyncio.shield(opening)
            except asyncio.CancelledError:
                late = await opening
                if late is not None:
                    await asyncio.to_thread(late.close)
                raise
        try:
            yield draft
        finally:
            await asyncio.shield(asyncio.to_thread(draft.close))


class _PullStream(Stream):
    """Fetches; the draft hashes each chunk in this stream's thread, as it comes."""

    def __init__(
        self, plan: Plan, connection: BulkConnection, transfer: Transfer, draft: PullDraft, layout: Layout
    ) -> None:
        super().__init__(plan, connection, transfer.peer.name)
        self._draft = draft
        self._encoder = StreamEncoder(transfer.choice, layout)

    def begin(self, index: int) -> None:
        self.connection.ask(self._draft.artifact, index, self._encoder.choose(index))

    def finish(self, index: int) -> int:
        size = self.plan.leaf(index).size
        pieces, wire = self.connection.receive(size, self._encoder.shape(index))
        self._draft.put_pieces(index, pieces)
        self._encoder.finished(index, size)
        return wire
