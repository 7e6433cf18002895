"""Fetch one artifact from one peer or from several: judge first, move then, publish at the end.

    hello ─► name ─► description: envelope ─► policies ─► leaves, tokens ─► draft ─► N streams ─► publish ─► name
             signed               signature,  size,       hashed            lock,    to each,
             ref                  then parse  fingerprints                  leases   every chunk
                                                                                     verified

Whatever ends a pull early, verified chunks stay and the next pull fetches only the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from kvsync.config import Settings
from kvsync.errors import UnavailableError, UsageError
from kvsync.keys import NodeKeys, Peer, TrustList
from kvsync.peer.blame import BlameBook
from kvsync.peer.bulk_client import BulkConnection
from kvsync.progress import Progress, silent
from kvsync.store import PullDraft, Store
from kvsync.sync.choice import StreamEncoder
from kvsync.sync.description import Describing, Description
from kvsync.sync.part import Part, extent
from kvsync.sync.plan import Plan
from kvsync.sync.report import PullReport
from kvsync.sync.share import Share
from kvsync.sync.sources import Sources
from kvsync.sync.streams import Stream, SupersededError
from kvsync.sync.transfer import Contact, Transfer
from kvsync_protocol import manifest as manifest_format
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.ref import Ref

_LOCK_SLICE_S: Final = 2.0
"""Waiting for another transfer of the same artifact happens in slices, between which we can be cancelled."""


async def pull(
    store: Store,
    trust: TrustList,
    sources: Peer | Sequence[Peer],
    wanted: str,
    *,
    keys: NodeKeys,
    settings: Settings,
    fingerprints: Fingerprints | None,
    progress: Progress = silent,
    dry_run: bool = False,
    position: int | None = None,
    blocks: int | None = None,
) -> PullReport:
    """Fetch `wanted`, an artifact id or a name, from `sources`: one peer, or several at once.

    Of several, one that lies, stalls or vanishes loses its own part only; each wrong chunk leaves a blame record.
    `fingerprints` are those of the model it is for, or None for a host that merely carries it. A dry
    run changes nothing, and its report holds every policy's verdict. With `position`, in tokens, or `blocks`, only
    what a graft at the last place up to there needs is fetched; a later pull of more fetches the difference.

    Raises:
        TrustError: `peer.identity`, `peer.refused`, `trust.untrusted_signer`, `trust.bad_signature`,
            `trust.rollback`, `trust.expired`, `trust.ref_owner`, `trust.name`, `peer.revoked`.
        PolicyError: `peer.role`, `policy.size`, `policy.audited`, `policy.signers`, `evidence.refuted`,
            `divergence.unsettled`.
        MismatchError: `mismatch.compatibility`, `mismatch.numerics`, `mismatch.canary`.
        IntegrityError: `integrity.*`, `bulk.size`, `codec.size`; MalformedError: `bulk.*`, `codec.*`,
            `message.*`, naming the peer that sent it.
        NotFoundError: `peer.unknown_name`, `store.unknown_artifact`, `peer.chunk_gone`.
        UnavailableError: `peer.unreachable`, `peer.closed`, `peer.stalled`, `peer.deadline`; of several peers
            with different reasons `pull.no_provider`, naming each one's.
        UsageError: `pull.no_source` without any peer; `pull.part` when no graft can begin in the part asked for.
        StoreError: `store.full`, `store.quota`.
    """
    peers = list({peer.key: peer for peer in ([sources] if isinstance(sources, Peer) else sources)}.values())
    if not peers:
        raise UsageError("pull.no_source", "there is no peer to get it from", hint="kvsync peer add")
    transfer = Transfer("pull", peers, keys, settings, progress, dry_run=dry_run)
    return await _Pull(transfer, store, trust).run(wanted, fingerprints, Part(position, blocks))


class _Pull:
    """One pull's state."""

    def __init__(self, transfer: Transfer, store: Store, trust: TrustList) -> None:
        self._transfer = transfer
        self._store = store
        self._trust = trust
        self._open: tuple[PullDraft, Layout] | None = None

    async def run(self, wanted: str, fingerprints: Fingerprints | None, part: Part) -> PullReport:
        transfer = self._transfer
        describing = Describing(transfer, self._store, self._trust, wanted, fingerprints, part)
        async with Sources(transfer, describing, self._stream) as sources:
            found = await sources.description()
            transfer.policies = found.policies
            kept = extent(found.manifest.layout, found.position)
            asked = None if kept is None else [span.index for span in kept.spans()]
            if found.leaves is None or found.tokens is None:
                plan = Plan(found.table.leaves, (), silent, transfer.stage, asked=asked)
            elif transfer.dry_run:
                missing = await asyncio.to_thread(self._lacking, found.table, asked)
                plan = Plan(found.table.leaves, missing, silent, transfer.stage, asked=asked)
            else:
                plan = await self._fetch(sources, found, found.leaves, found.tokens, asked)
            if found.ref is not None and not transfer.dry_run:
                await asyncio.to_thread(self._name, *found.ref)
        name = found.ref[0].name if found.ref is not None else None
        report = transfer.report(PullReport, found.manifest, plan, name)
        return dataclasses.replace(report, position=found.position)

    async def _fetch(
        self, sources: Sources, found: Description, leaves: bytes, tokens: bytes, asked: list[int] | None
    ) -> Plan:
        """Everything asked for that is not here, published at the end."""
        transfer, manifest = self._transfer, found.manifest
        async with self._draft(found, leaves, tokens) as draft:
            self._open = draft, manifest.layout
            missing = await asyncio.to_thread(draft.missing)
            own = transfer.keys.peer.public.raw
            plan = Plan(found.table.leaves, missing, transfer.progress, transfer.stage, own, asked)
            with transfer.moving(plan):
                await sources.move(manifest, plan)
            found.envelope.verify(manifest_format.PAYLOAD_TYPE, self._trust.keys())  # nobody withdrew it meanwhile
            await asyncio.to_thread(draft.publish)
        await asyncio.to_thread(found.evidence.keep)
        return plan

    def _stream(self, contact: Contact, share: Share, connection: BulkConnection) -> Stream:
        if self._open is None:
            raise UsageError("store.draft_closed", "chunks can only go into an open draft")
        return _PullStream(share, connection, contact, *self._open)

    def _name(self, ref: Ref, envelope: Envelope) -> None:
        """Keep the name, by those of its signers that are still trusted."""
        _, still = self._trust.judge_ref(envelope)
        self._store.set_ref(ref, envelope, *still, owners=self._trust.owners(ref.name, still))

    def _lacking(self, table: LeafTable, asked: list[int] | None) -> list[int]:
        leaves, indices = table.leaves, range(len(table.leaves)) if asked is None else asked
        return [index for index in indices if not self._store.has_chunk(leaves[index].digest)]

    @asynccontextmanager
    async def _draft(self, found: Description, leaves: bytes, tokens: bytes) -> AsyncIterator[PullDraft]:
        """The draft, once no other transfer on this host holds it."""
        positions = None if found.position is None else [found.position]

        def attempt() -> PullDraft | None:
            until = min(self._transfer.deadline.at, time.monotonic() + _LOCK_SLICE_S)
            try:
                return self._store.pull_draft(
                    found.envelope, found.manifest, leaves, tokens, positions=positions, deadline=until
                )
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
        self, share: Share, connection: BulkConnection, contact: Contact, draft: PullDraft, layout: Layout
    ) -> None:
        super().__init__(share, connection, ahead=contact.begins_ahead)
        self._contact = contact
        self._draft = draft
        self._encoder = StreamEncoder(contact.choice, layout)

    def begin(self, index: int) -> None:
        self.connection.ask(self._draft.artifact, index, self._encoder.choose(index))

    def finish(self, index: int) -> int:
        size = self.plan.leaf(index).size
        arrived = partial(self.share.arrived, index)
        pieces, wire = self.connection.receive(size, self._encoder.shape(index), arrived)
        self._draft.put_pieces(index, self._wanted(index, pieces))
        self._encoder.finished(index, size)
        return wire

    def refused(self, index: int, error: IntegrityError | MalformedError) -> None:
        transfer, peer = self._contact.transfer, self._contact.peer
        BlameBook(transfer.keys.home).note(transfer.keys.signer, peer.key, self._draft.artifact, index, error)
        super().refused(index, error)

    def _wanted(self, index: int, pieces: Iterable[memoryview]) -> Iterator[memoryview]:
        """Hands `pieces` on until somebody else's copy is here."""
        for piece in pieces:
            if self.plan.is_moved(index):
                raise SupersededError
            yield piece
