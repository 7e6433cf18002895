"""The control lane's serving side: JSON and small bodies over HTTP/1.1 (SPEC 8.1).

The frame around every request stands in `lane`. Every body is capped while it is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

from aiohttp import web

from kvsync.config import Settings
from kvsync.keys import KeySpread, TrustList
from kvsync.peer.access import Access
from kvsync.peer.connections import Connection
from kvsync.peer.intake import Intake
from kvsync.peer.lane import Extension, Lane
from kvsync.peer.offers import Offers
from kvsync.peer.roster import Roster
from kvsync.store import Store, StoredArtifact
from kvsync_protocol import parts, routes
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.have import Have
from kvsync_protocol.limits import MAX_ATTESTATIONS, MAX_ENVELOPE_BYTES, MAX_JSON_BYTES, MAX_LIST_ENTRIES
from kvsync_protocol.messages import Attestations, Commit, Hello, Missing, RefList, Related
from kvsync_protocol.prefix import encode_tokens
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.statements import KeyStatements

SOFTWARE: Final = "kvsync/0.1"


class ControlLane(Lane):
    """Handlers of the control routes, as one aiohttp application.

    `caller` finds the connection that a request came in on; the server that accepted it knows. `extensions` add
    routes of their own, answered in the same frame.
    """

    def __init__(
        self,
        store: Store,
        offers: Offers,
        roster: Roster,
        trust: TrustList,
        settings: Settings,
        *,
        signer: PublicKey,
        access: Access,
        reading: Executor,
        writing: Executor,
        caller: Callable[[web.Request], Connection],
        extensions: Sequence[Extension] = (),
    ) -> None:
        super().__init__(roster, settings, reading, writing, caller)
        self.store = store
        self._offers = offers
        self._spread = KeySpread(trust.home, trust)
        self._access = access
        self._intake = Intake(store, offers, trust, settings, access)
        self._signer = signer
        self._extensions = extensions

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        get, put, post = app.router.add_get, app.router.add_put, app.router.add_post
        get(routes.HELLO, self._hello, allow_head=False)
        post(routes.STATEMENTS, self._statements)
        get(routes.REFS, self._refs, allow_head=False)
        get(routes.ENVELOPE, self._envelope, allow_head=False)
        get(routes.LEAVES, self._leaves, allow_head=False)
        get(routes.TOKENS, self._tokens, allow_head=False)
        get(routes.HAVE, self._have, allow_head=False)
        get(routes.DESCRIPTION, self._description, allow_head=False)
        get(routes.ATTESTATIONS, self._attestations, allow_head=False)
        post(routes.ATTESTATIONS, self._attest)
        get(routes.RELATED, self._related, allow_head=False)
        post(routes.OFFERS, self._offer)
        put(routes.OFFER_LEAVES, self._offer_leaves)
        put(routes.OFFER_TOKENS, self._offer_tokens)
        get(routes.OFFER_MISSING, self._offer_missing, allow_head=False)
        post(routes.OFFER_COMMIT, self._offer_commit)
        for extend in self._extensions:
            extend(app, self)
        return app

    # what is asked about

    async def _visible(self, request: web.Request, role: str = "get") -> ArtifactId:
        """The artifact that is asked for, once the caller may see it."""
        key, artifact = self.require(request, role), _artifact(request)
        await self.in_thread(self._access.require, key, artifact)
        return artifact

    # what is here

    async def _hello(self, request: web.Request) -> web.StreamResponse:
        peer = self.roster.find(self._caller(request).key)
        said = await self.in_thread(self._spread.message)
        hello = Hello(SOFTWARE, (self._signer,), peer.roles if peer else (), said.digest)
        return await self._send(request, hello.encode(), "application/json")

    async def _statements(self, request: web.Request) -> web.StreamResponse:
        """What each side says about keys; open to every peer, because a revocation must reach everybody."""
        theirs = KeyStatements.parse(await self.body(request, MAX_JSON_BYTES))
        ours = await self.in_thread(self._spread.message)
        await asyncio.to_thread(self._spread.take, theirs)  # a revocation stands behind no commit
        return await self._send(request, ours.encode(), "application/json")

    async def _refs(self, request: web.Request) -> web.StreamResponse:
        key = self.require(request, "get")
        name, after = (check_name(text) if (text := request.query.get(word)) else "" for word in ("name", "after"))
        data = await self.in_thread(self.refs, key, name, after)
        return await self._send(request, data, "application/json")

    async def _envelope(self, request: web.Request) -> web.StreamResponse:
        data = await self._part(request, self.envelope)
        return await self._send(request, data, "application/json")

    async def _leaves(self, request: web.Request) -> web.StreamResponse:
        data = await self._part(request, self.leaves)
        return await self._send(request, data, "application/octet-stream")

    async def _tokens(self, request: web.Request) -> web.StreamResponse:
        data = await self._part(request, self.tokens)
        return await self._send(request, data, "application/octet-stream")

    async def _part(self, request: web.Request, part: Callable[[StoredArtifact], bytes]) -> bytes:
        artifact = await self._visible(request)
        return await self.in_thread(lambda: part(self.store.artifact(artifact)))

    async def _have(self, request: web.Request) -> web.StreamResponse:
        data = await self.in_thread(self.have, await self._visible(request))
        return await self._send(request, data, "application/json")

    async def _description(self, request: web.Request) -> web.StreamResponse:
        data = await self.in_thread(self.description, await self._visible(request))
        return await self._send(request, data, "application/octet-stream")

    def refs(self, key: PublicKey, name: str, after: str) -> bytes:
        """The ref of this name, or else a page of refs by name that fits into one message, if `key` may see it."""
        peer = self.roster.find(key)
        found: list[Envelope] = []
        size = 0
        for stored in self.store.refs():
            if peer is None or not peer.sees([stored.name]):
                continue
            if stored.name == name or (not name and stored.name > after):
                size += 2 * len(stored.envelope.encode())  # quotes are escaped inside the page's JSON
                if len(found) == MAX_LIST_ENTRIES or size > MAX_JSON_BYTES // 2:
                    return RefList(tuple(found), more=True).encode()
                found.append(stored.envelope)
        return RefList(tuple(found)).encode()

    def envelope(self, stored: StoredArtifact) -> bytes:
        return stored.envelope.encode()

    def leaves(self, stored: StoredArtifact) -> bytes:
        return stored.leaves().encode()

    def tokens(self, stored: StoredArtifact) -> bytes:
        return encode_tokens(stored.tokens())

    def have(self, artifact: ArtifactId) -> bytes:
        """Also of one that is still arriving."""
        with self.store.serve(artifact) as served:
            return Have.of(served.here(), len(served.table.leaves)).encode()

    def description(self, artifact: ArtifactId) -> bytes:
        """All that a getter needs before the chunks."""
        stored = self.store.artifact(artifact)
        tables = self.envelope(stored), self.attestations(artifact), self.leaves(stored), self.tokens(stored)
        return parts.join((*tables, self.have(artifact)))

    # what auditors say

    async def _attestations(self, request: web.Request) -> web.StreamResponse:
        data = await self.in_thread(self.attestations, await self._visible(request))
        return await self._send(request, data, "application/json")

    def attestations(self, artifact: ArtifactId) -> bytes:
        return Attestations.of(self.store.attestations(artifact)).encode()

    async def _attest(self, request: web.Request) -> web.StreamResponse:
        role = "push" if "push" in self._roles(request) else "audit"
        artifact = await self._visible(request, role)
        await self.in_writing_thread(self._intake.attest, artifact, await self.body(request, MAX_JSON_BYTES))
        return await self._send(request, b"", "application/octet-stream")

    async def _related(self, request: web.Request) -> web.StreamResponse:
        artifact, key = await self._visible(request), self._caller(request).key
        data = await self.in_thread(self.related, key, artifact)
        return await self._send(request, data, "application/json")

    def related(self, key: PublicKey, artifact: ArtifactId) -> bytes:
        """Others that compute a block of it alike, as far as `key` may see them."""
        peer, evidence = self.roster.find(key), self.store.evidence
        found = evidence.related_ids(evidence.describe(artifact))
        seen = [other for other in found if other != artifact and peer is not None and self._access.sees(peer, other)]
        return Related(tuple(seen[:MAX_ATTESTATIONS])).encode()

    # what others push

    async def _offer(self, request: web.Request) -> web.StreamResponse:
        key = self.require(request, "push")
        body = await self.body(request, MAX_ENVELOPE_BYTES)
        accepted = await self.in_writing_thread(self._intake.judge, key, body)
        return await self._send(request, accepted.encode(), "application/json")

    async def _offer_leaves(self, request: web.Request) -> web.StreamResponse:
        offer = self._offers.find(self.require(request, "push"), _artifact(request))
        await self.in_thread(offer.add_leaves, await self.body(request, 40 * offer.manifest.tree.size))
        return await self._send(request, b"", "application/octet-stream")

    async def _offer_tokens(self, request: web.Request) -> web.StreamResponse:
        offer = self._offers.find(self.require(request, "push"), _artifact(request))
        await self.in_thread(offer.add_tokens, await self.body(request, 4 * offer.manifest.tokens.count))
        return await self._send(request, b"", "application/octet-stream")

    async def _offer_missing(self, request: web.Request) -> web.StreamResponse:
        offer = self._offers.find(self.require(request, "push"), _artifact(request))
        deadline = time.monotonic() + self._settings.stall_timeout_s / 2
        missing = await self.in_writing_thread(offer.begin, self.store, deadline, self._intake.vouch)
        return await self._send(request, Missing.of(missing).encode(), "application/json")

    async def _offer_commit(self, request: web.Request) -> web.StreamResponse:
        key, artifact = self.require(request, "push"), _artifact(request)
        commit = Commit.parse(await self.body(request, 2 * MAX_ENVELOPE_BYTES))
        accepted = await self.in_writing_thread(self._intake.commit, key, artifact, commit)
        return await self._send(request, accepted.encode(), "application/json")


def _artifact(request: web.Request) -> ArtifactId:
    return ArtifactId(Digest.parse(request.match_info["artifact"]))
