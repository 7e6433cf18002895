"""What is to be fetched, from the first provider that describes it well.

    name ─► newest ref ─► description: envelope ─► policies ─► attestations, leaves, tokens ─► evidence ─► Description
            of all                     signed      size,                     hashed
            in time                    bytes       fingerprints

Each provider tries in its own task; one describes at a time, and a slow one is not waited for. Knows no chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from kvsync.errors import NotFoundError
from kvsync.keys import Peer, TrustList
from kvsync.store import Store
from kvsync.sync.evidence import ArtifactEvidence
from kvsync.sync.part import Part, covers, extent
from kvsync.sync.policy import Policies
from kvsync.sync.transfer import Contact, Transfer
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.divergence import Described
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.ref import Ref, check_name

NAMES_S: Final = 0.5
"""So long the others' word on a name is waited for after the first: one of them may know a newer artifact."""
TURN_S: Final = 2.0
"""After so long the next provider begins to describe although one is still at it."""


@dataclass(frozen=True)
class Description:
    """An artifact, judged, and the name that it was asked for by. `leaves` and `tokens` are None when it is here."""

    manifest: Manifest
    envelope: Envelope
    table: LeafTable
    evidence: ArtifactEvidence
    policies: Policies
    leaves: bytes | None = None
    tokens: bytes | None = None
    position: int | None = None
    """Where a graft shall begin that the pull is for; None for all of the artifact."""
    ref: tuple[Ref, Envelope] | None = None


class Describing:
    """`found` is the outcome: a description, or nothing while somebody may still give one."""

    def __init__(
        self,
        transfer: Transfer,
        store: Store,
        trust: TrustList,
        wanted: str,
        fingerprints: Fingerprints | None,
        part: Part,
    ) -> None:
        self.found: asyncio.Future[Description] = asyncio.get_running_loop().create_future()
        self._transfer = transfer
        self._store = store
        self._trust = trust
        self._fingerprints = fingerprints
        self._wanted = wanted
        self._part = part
        self._undecided: set[Peer] = set(transfer.peers)
        self._refs: list[tuple[Ref, Envelope]] = []
        self._turn = asyncio.Lock()
        self._heard = asyncio.Event()
        try:
            self._artifact: ArtifactId | None = ArtifactId(Digest.parse(wanted))
        except MalformedError:
            self._artifact = None
            check_name(wanted)

    async def ask(self, contact: Contact) -> None:
        """Return once there is a description, by this provider or by another.

        Raises what is wrong with this one's.
        """
        artifact = self._artifact or await self._resolve(contact)
        async with self._next():
            if not self.found.done():
                found = await self._describe(contact, artifact)
                if not self.found.done():
                    self.found.set_result(found)

    def leave(self, peer: Peer) -> None:
        """This provider says nothing more about a name."""
        self._undecided.discard(peer)
        if not self._undecided:
            self._heard.set()

    @asynccontextmanager
    async def _next(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(TURN_S):
                await self._turn.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._turn.release()

    async def _resolve(self, contact: Contact) -> ArtifactId:
        """What the newest of the peers' signed refs stands for."""
        found = (await contact.client.refs(self._wanted)).refs
        if not found:
            raise NotFoundError(
                "peer.unknown_name",
                f"{contact.peer.name} has nothing named {self._wanted!r}",
                hint="ask for its id instead",
            )
        ref = await asyncio.to_thread(contact.policies.ref, found[0], self._trust, self._wanted, self._store)
        self._refs.append((ref, found[0]))
        self.leave(contact.peer)
        try:
            async with asyncio.timeout(NAMES_S):
                await self._heard.wait()
        except TimeoutError:
            pass  # who has not answered by now is not asked
        self._heard.set()
        self._artifact = self._newest(self._refs)[0].artifact if self._artifact is None else self._artifact
        return self._artifact

    def _newest(self, refs: Iterable[tuple[Ref, Envelope]]) -> tuple[Ref, Envelope]:
        return max(refs, key=lambda each: each[0].sequence)

    async def _describe(self, contact: Contact, artifact: ArtifactId) -> Description:
        transfer, policies, client = self._transfer, contact.policies, contact.client
        trusted = self._trust.keys()
        here = await asyncio.to_thread(self._leaves_here, artifact)

        def judge(envelope: Envelope) -> Manifest:
            """By what is signed, before anything else is read."""
            manifest = policies.signer(envelope, trusted, artifact)
            kept = extent(manifest.layout, self._part.position(manifest.layout))
            size = manifest.tree.total_bytes if kept is None else kept.bytes
            policies.size(size, transfer.settings.max_artifact_bytes)
            policies.model(self._fingerprints, manifest, transfer.settings.accept)
            if here is None and not transfer.dry_run:
                contact.open_ahead(manifest.layout.first_block_leaves)
            return manifest

        told = await (client.description(artifact, judge) if here is None else client.summary(artifact, judge))
        manifest = told.manifest
        envelope = told.envelope.endorsed(trusted)  # nobody's heap of other signatures is kept
        position = self._part.position(manifest.layout)
        if here is not None and not transfer.dry_run:
            await asyncio.to_thread(self._store.add_signatures, envelope, trusted)
        evidence = ArtifactEvidence(self._store, self._trust, transfer.settings, client, dry_run=transfer.dry_run)
        await evidence.learn(manifest, told.attestations, here=here is not None)
        await evidence.judge_audits(policies, envelope, manifest)
        named = [each for each in self._refs if each[0].artifact == artifact]
        ref = self._newest(named) if named else None
        if here is not None:
            return Description(manifest, envelope, here, evidence, policies, position=position, ref=ref)
        contact.have = told.have
        table = await asyncio.to_thread(manifest.check_leaves, told.leaves)
        ids = await asyncio.to_thread(manifest.check_tokens, told.tokens)
        await evidence.judge_bytes(policies, Described(envelope, manifest, table, ids))
        return Description(manifest, envelope, table, evidence, policies, told.leaves, told.tokens, position, ref)

    def _leaves_here(self, artifact: ArtifactId) -> LeafTable | None:
        """The leaves of the artifact if what is asked for is here already; a damaged one is fetched again."""
        whole = self._store.whole(artifact)
        if whole is None or not covers(whole, self._part.position(whole.manifest.layout)):
            return None
        return whole.leaves()
