"""Send one artifact to one peer, which judges it by its own trust list before it takes a byte.

hello ─► offer (envelope) ─► leaves, tokens ─► what is missing there ─► N streams ─► commit (name)
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Final

from kvsync.config import Settings
from kvsync.errors import NotFoundError, PolicyError, UnavailableError
from kvsync.keys import NodeKeys, Peer
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.client import PeerClient
from kvsync.progress import Progress, silent
from kvsync.store import Store, StoredArtifact, StoredRef
from kvsync.sync.choice import StreamEncoder
from kvsync.sync.plan import Plan
from kvsync.sync.report import PushReport
from kvsync.sync.share import Share
from kvsync.sync.streams import Stream
from kvsync.sync.transfer import Contact, Transfer
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import CodedError, IntegrityError
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.messages import Attestations, Commit, Hello
from kvsync_protocol.prefix import encode_tokens

MAX_ROUNDS: Final = 8
"""Times that the peer is asked what it still lacks: a list with very many gaps comes in parts."""
MAX_OFFERS: Final = 3
"""Times in a row that a push begins and moves no chunk when another one of the same artifact, or the peer's end, has
ended its offer. Otherwise it goes on: each long pause ends an offer."""

_ENDED: Final = ("offer.unknown", "peer.chunk_refused", "offer.incomplete", "store.incomplete")
"""How a peer answers when the offer is gone, or is another one by now: of another push of the same artifact."""


async def push(
    store: Store,
    peer: Peer,
    artifact: ArtifactId,
    *,
    keys: NodeKeys,
    settings: Settings,
    progress: Progress = silent,
    dry_run: bool = False,
) -> PushReport:
    """Send `artifact`, with the name it has here if any, to `peer`.

    A dry run asks the peer what it may be sent and whether it has the artifact, and offers nothing.

    Raises:
        NotFoundError: `store.unknown_artifact`; `store.partial` when only a part of it is here.
        TrustError: `peer.identity`, `peer.refused`; `trust.untrusted_signer` when the peer trusts no signer of it.
        PolicyError: `peer.role`, `policy.size`; StoreError: `store.full`, `store.quota`, there or here.
        IntegrityError: `integrity.chunk` when chunks keep arriving damaged.
        UnavailableError: `peer.unreachable`, `peer.closed`, `peer.stalled`, `peer.deadline`, `offer.too_many`.
    """
    transfer = Transfer("push", [peer], keys, settings, progress, dry_run=dry_run)
    with ExitStack() as stack:
        stored = await asyncio.to_thread(stack.enter_context, store.hold(artifact))
        if stored.extent is not None:
            raise NotFoundError(
                "store.partial",
                f"only a part of artifact {artifact.short} is here",
                hint="kvsync pull fetches the rest",
                artifact=artifact,
            )
        return await _Push(transfer, store, stored).run()


class _Push:
    """One push's state."""

    def __init__(self, transfer: Transfer, store: Store, stored: StoredArtifact) -> None:
        self._transfer = transfer
        self._store = store
        self._stored = stored

    async def run(self) -> PushReport:
        transfer, stored = self._transfer, self._stored
        table = await asyncio.to_thread(stored.leaves)
        named = await asyncio.to_thread(self._ref)
        async with transfer.contact(transfer.peers[0]) as contact:
            self._judge(contact, await contact.client.hello())
            if transfer.dry_run:
                plan = Plan(table.leaves, range(len(table.leaves)), silent, transfer.stage)
            else:
                plan = await self._send(contact, table, Commit(named.envelope if named else None))
        return transfer.report(PushReport, stored.manifest, plan, named.name if named else None)

    async def _send(self, contact: Contact, table: LeafTable, commit: Commit) -> Plan:
        """Everything that the peer lacks, offered anew when another push of the same artifact ends the offer."""
        in_vain = 0
        while True:
            plan = Plan(table.leaves, (), self._transfer.progress, self._transfer.stage)
            try:
                await self._offer(contact, plan, table, commit)
                return plan
            except CodedError as error:
                in_vain = 0 if plan.chunks_moved else in_vain + 1
                if error.code not in _ENDED or in_vain == MAX_OFFERS:
                    raise

    async def _offer(self, contact: Contact, plan: Plan, table: LeafTable, commit: Commit) -> None:
        """Everything that the peer lacks, published there at the end."""
        transfer, stored, client = self._transfer, self._stored, contact.client
        accepted = await client.offer(stored.envelope)
        if accepted.artifact != stored.artifact:
            raise IntegrityError("integrity.artifact", "the peer accepted another artifact than the one offered")
        if accepted.complete:
            if commit.ref is not None:
                await client.commit(stored.artifact, commit)
            await self._attest(client)
            return
        contact.open_ahead(len(table.leaves))
        await client.offer_leaves(stored.artifact, table.encode())
        await client.offer_tokens(stored.artifact, encode_tokens(await asyncio.to_thread(stored.tokens)))
        share = plan.join(contact.peer.name)
        for _ in range(MAX_ROUNDS):
            if not plan.extend((await client.missing(stored.manifest)).indices()):
                break
            with transfer.moving(plan):
                await contact.move(
                    share, lambda connection: _PushStream(share, connection, contact, self._store, stored)
                )
        else:
            raise UnavailableError("peer.failed", f"{contact.peer.name} keeps asking for chunks that it was sent")
        await client.commit(stored.artifact, commit)
        await self._attest(client)

    async def _attest(self, client: PeerClient) -> None:
        """Send what auditors have signed; the peer keeps what its own trust list says."""
        found = await asyncio.to_thread(self._store.attestations, self._stored.artifact)
        if found:
            await client.attest(self._stored.artifact, Attestations.of(found))

    def _judge(self, contact: Contact, hello: Hello) -> None:
        """Ask the peer's own word, so that a dry run learns it and a push fails early."""
        name, policies = contact.peer.name, self._transfer.policies
        if "push" in hello.roles:
            policies.allow("role", f"{name} takes artifacts from this node")
            return
        hint = "kvsync peer add --role push, on the peer"
        policies.refuse("role", PolicyError("peer.role", f"{name} takes no artifacts from this node", hint=hint))

    def _ref(self) -> StoredRef | None:
        """A name that stands for the artifact here."""
        return next((ref for ref in self._store.refs() if ref.artifact == self._stored.artifact), None)


class _PushStream(Stream):
    """Sends; the peer hashes what arrives."""

    def __init__(
        self, share: Share, connection: BulkConnection, contact: Contact, store: Store, stored: StoredArtifact
    ) -> None:
        super().__init__(share, connection, ahead=contact.begins_ahead)
        self._store = store
        self._artifact = stored.artifact
        self._sent: dict[int, int] = {}
        self._encoder = StreamEncoder(contact.choice, stored.manifest.layout)

    def begin(self, index: int) -> None:
        leaf = self.plan.leaf(index)
        encoding, shape = self._encoder.choose(index), self._encoder.shape(index)
        with ChunkFile(self._store, leaf) as chunk:
            self._sent[index] = self.connection.send(self._artifact, index, chunk, encoding, shape)

    def finish(self, index: int) -> int:
        self.connection.confirm()
        self._encoder.finished(index, self.plan.leaf(index).size)
        return self._sent.pop(index)
