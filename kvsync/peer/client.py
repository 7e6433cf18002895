"""The control lane's asking side: one peer, whichever of its addresses answers with its key.

Follows no redirect, unpacks nothing, and reads no more of an answer than was asked for. Bulk
connections to the same place are opened with `bulk()`.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self
from weakref import WeakSet

import aiohttp
from aiohttp.connector import Connection

from kvsync.config import Settings
from kvsync.errors import KvsyncError, NotFoundError, UnavailableError, UsageError
from kvsync.keys import KeySpread, Peer, join_address
from kvsync.keys.peers import MAX_ADDRESSES
from kvsync.networks import Networks
from kvsync.peer.answer_body import AnswerBody
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.clear_stream import ClearOffer
from kvsync.peer.deadline import Deadline
from kvsync.peer.dial import NobodyAnsweredError, cut, first_to_answer
from kvsync.peer.identity import NodeIdentity, check_peer
from kvsync.peer.place import host_of
from kvsync.peer.rates import Throttle
from kvsync.peer.remote_errors import remote_error
from kvsync.peer.stream import LEAST_RATE, round_trip_s
from kvsync.peer.stream_errors import stream_error
from kvsync.peer.tls_context import asking_context
from kvsync.peer.watch import revoked
from kvsync_protocol import bulk, library_routes, routes, unencrypted
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, ProtocolError, TrustError
from kvsync_protocol.have import Have
from kvsync_protocol.limits import LEAF_ENTRY_BYTES, MAX_ENVELOPE_BYTES, MAX_JSON_BYTES
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.messages import Accepted, Attestations, Commit, Hello, Missing, RefList, Related
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.statements import KeyStatements

CONNECT_S: Final = 10.0
FAR_S: Final = 0.002
"""Round-trip time from which a line is far: below, the gap between two chunks costs less than a percent."""
_JSON: Final = {"Content-Type": "application/json"}
_BYTES: Final = {"Content-Type": "application/octet-stream"}


@dataclass(frozen=True, slots=True)
class _Request:
    """`patient`: it waits for the peer's disk, until the deadline while the peer says that it works on it."""

    method: str
    path: str
    data: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    patient: bool = False


@dataclass(frozen=True)
class Told:
    """What a peer tells of an artifact; the manifest is judged, nothing else is."""

    envelope: Envelope
    manifest: Manifest
    attestations: tuple[Envelope, ...]
    leaves: bytes = b""
    tokens: bytes = b""
    have: Have | None = None


class PeerClient:
    """Talks to one peer. Async context manager; `hello` comes first and settles the address."""

    def __init__(
        self,
        peer: Peer,
        identity: NodeIdentity,
        settings: Settings,
        deadline: Deadline,
        spread: KeySpread | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self.peer = peer
        self._throttle = throttle
        self._spread = spread
        self._settings = settings
        self._deadline = deadline
        self._context = identity.client_context(peer.keys, routes.CONTROL_ALPN)
        self._bulk_context = asking_context(identity, peer.keys, bulk.ALPN)
        self._clear = _clear_offer(peer, identity, Networks(settings.unencrypted_bulk_networks))
        self._connector: _PinnedConnector | None = None
        self._address = ""
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._connector = _PinnedConnector(self._context, self.peer.keys)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            headers={"Accept-Encoding": "identity", "User-Agent": "kvsync"},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
        if self._connector is not None:
            await cut(list(self._connector.opened))

    async def hello(self) -> Hello:
        """Find the address that answers first, and tell each other what is known of keys.

        Raises:
            TrustError: `peer.identity` (something else answers there), `peer.refused` (it does not know us),
                `peer.revoked` (no key of it counts any more).
            UnavailableError: `peer.unreachable`, naming what was tried.
            UsageError: `peer.no_address`.
        """
        if not self.peer.addresses:
            raise UsageError("peer.no_address", f"no address is known for {self.peer.name}", hint="kvsync peer add")
        if not self.peer.keys:
            raise revoked(self.peer)
        try:
            self._address, hello = await first_to_answer(
                self.peer.addresses, self._greet, failing=(UnavailableError, TrustError)
            )
        except NobodyAnsweredError as error:
            raise self._unreachable(error.failures) from error
        await self._exchange(hello)
        return hello

    async def _greet(self, address: str) -> Hello:
        try:
            return Hello.parse(await self._ask(_Request("GET", routes.HELLO), MAX_JSON_BYTES, address))
        except UnavailableError as error:
            refusal = await asyncio.to_thread(self._bulk(address).refusal) if error.code == "peer.closed" else None
            raise (refusal or error) from error

    def _unreachable(self, failures: Mapping[str, CodedError]) -> CodedError:
        for failure in failures.values():
            if isinstance(failure, TrustError):
                return failure
        tried = ", ".join(f"{address} ({error.message})" for address, error in failures.items())
        return UnavailableError(
            "peer.unreachable",
            f"{self.peer.name} cannot be reached at {tried}",
            hint="is its daemon running, and is the address right?",
            peer=self.peer.name,
            addresses=list(failures),
        )

    async def _exchange(self, hello: Hello) -> None:
        """Statements about keys, both ways, unless both sides hold the same. Raises TrustError `peer.revoked`."""
        if self._spread is None or hello.statements is None:
            return
        ours = await asyncio.to_thread(self._spread.message)
        if ours.digest == hello.statements:
            return
        theirs = KeyStatements.parse(await self._send("POST", routes.STATEMENTS, ours.encode(), _JSON))
        taken = await asyncio.to_thread(self._spread.take, theirs)
        if taken.revocations and set(self.peer.keys) <= await asyncio.to_thread(self._spread.revoked):
            raise revoked(self.peer)

    async def refs(self, name: str) -> RefList:
        """What the peer says `name` stands for. Nothing in it is verified yet."""
        return RefList.parse(await self._get(f"{routes.REFS}?name={check_name(name)}", MAX_JSON_BYTES))

    async def envelope(self, artifact: ArtifactId) -> Envelope:
        return Envelope.parse(await self._get(routes.path(routes.ENVELOPE, artifact), MAX_ENVELOPE_BYTES))

    async def leaves(self, manifest: Manifest) -> bytes:
        """The bytes of a leaf table, at most as many as signed; unchecked otherwise."""
        size = LEAF_ENTRY_BYTES * manifest.tree.size
        return await self._get(routes.path(routes.LEAVES, manifest.artifact), size)

    async def tokens(self, manifest: Manifest) -> bytes:
        """The bytes of the token ids, at most as many as signed; unchecked otherwise."""
        return await self._get(routes.path(routes.TOKENS, manifest.artifact), 4 * manifest.tokens.count)

    async def have(self, manifest: Manifest) -> Have:
        """Which of its chunks the peer can serve now, still arriving ones included; all where it cannot say.

        Raises NotFoundError `store.unknown_artifact` when it has none of it.
        """
        try:
            data = await self._get(routes.path(routes.HAVE, manifest.artifact), MAX_JSON_BYTES)
        except NotFoundError as error:
            if error.code != "peer.route":
                raise
            return Have(manifest.tree.size)
        return Have.parse(data, leaves=manifest.tree.size)

    async def description(self, artifact: ArtifactId, judge: Callable[[Envelope], Manifest]) -> Told:
        """All there is to know before the chunks, in one answer.

        `judge` verifies the envelope, or raises; the sizes that it finds signed bound what is read after it.
        Tables are unchecked otherwise.
        """
        try:
            return await self._description(artifact, judge)
        except NotFoundError as error:
            if error.code != "peer.route":
                raise
        told = await self.summary(artifact, judge)
        manifest = told.manifest
        return replace(
            told,
            leaves=await self.leaves(manifest),
            tokens=await self.tokens(manifest),
            have=await self.have(manifest),
        )

    async def summary(self, artifact: ArtifactId, judge: Callable[[Envelope], Manifest]) -> Told:
        """The same without tables, for whom they are here."""
        envelope = await self.envelope(artifact)
        manifest = judge(envelope)
        return Told(envelope, manifest, await self.attestations(artifact))

    async def _description(self, artifact: ArtifactId, judge: Callable[[Envelope], Manifest]) -> Told:
        async with self._answer(_Request("GET", routes.path(routes.DESCRIPTION, artifact)), self._address) as body:
            envelope = Envelope.parse(await body.part(MAX_ENVELOPE_BYTES))
            manifest = judge(envelope)
            attestations = Attestations.parse(await body.part(MAX_JSON_BYTES)).envelopes
            leaves = await body.part(LEAF_ENTRY_BYTES * manifest.tree.size)
            tokens = await body.part(4 * manifest.tokens.count)
            have = Have.parse(await body.part(MAX_JSON_BYTES), leaves=manifest.tree.size)
            await body.rest(0)
        return Told(envelope, manifest, attestations, leaves, tokens, have)

    async def attestations(self, artifact: ArtifactId) -> tuple[Envelope, ...]:
        """What auditors have signed about it there, nothing verified; none where the peer knows no such thing."""
        try:
            data = await self._get(routes.path(routes.ATTESTATIONS, artifact), MAX_JSON_BYTES)
        except NotFoundError as error:
            if error.code != "peer.route":
                raise
            return ()
        return Attestations.parse(data).envelopes

    async def attest(self, artifact: ArtifactId, found: Attestations) -> bool:
        """Offer attestations; the peer keeps those by keys that it trusts. False where it knows no such thing."""
        request = _Request("POST", routes.path(routes.ATTESTATIONS, artifact), found.encode(), _JSON, patient=True)
        try:
            await self._ask(request, MAX_JSON_BYTES, self._address)
        except NotFoundError as error:
            if error.code != "peer.route":
                raise
            return False
        return True

    async def related(self, artifact: ArtifactId) -> tuple[ArtifactId, ...]:
        """Other artifacts there that compute a block alike; none where the peer knows no such thing."""
        try:
            data = await self._get(routes.path(routes.RELATED, artifact), MAX_JSON_BYTES)
        except NotFoundError as error:
            if error.code != "peer.route":
                raise
            return ()
        return Related.parse(data).artifacts

    async def library(self, name: str) -> Envelope:
        """The list of a library there, nothing verified. Raises NotFoundError `library.unknown`."""
        return Envelope.parse(
            await self._get(f"{library_routes.LIBRARIES}?name={check_name(name)}", MAX_ENVELOPE_BYTES)
        )

    async def entry(self, library: str, entry: Digest) -> Envelope:
        """An entry of a library there, nothing verified. Raises NotFoundError `library.unknown_entry`."""
        path = f"{library_routes.ENTRY.format(entry=entry.hex)}?library={check_name(library)}"
        return Envelope.parse(await self._get(path, MAX_ENVELOPE_BYTES))

    async def offer(self, envelope: Envelope) -> Accepted:
        request = _Request("POST", routes.OFFERS, envelope.encode(), _JSON, patient=True)
        return Accepted.parse(await self._ask(request, MAX_JSON_BYTES, self._address))

    async def offer_leaves(self, artifact: ArtifactId, data: bytes) -> None:
        await self._send("PUT", routes.path(routes.OFFER_LEAVES, artifact), data, _BYTES)

    async def offer_tokens(self, artifact: ArtifactId, data: bytes) -> None:
        await self._send("PUT", routes.path(routes.OFFER_TOKENS, artifact), data, _BYTES)

    async def missing(self, manifest: Manifest) -> Missing:
        path = routes.path(routes.OFFER_MISSING, manifest.artifact)
        found = await self._ask(_Request("GET", path, patient=True), MAX_JSON_BYTES, self._address)
        return Missing.parse(found, leaves=manifest.tree.size)

    async def commit(self, artifact: ArtifactId, commit: Commit) -> Accepted:
        request = _Request("POST", routes.path(routes.OFFER_COMMIT, artifact), commit.encode(), _JSON, patient=True)
        answer = await self._ask(request, MAX_JSON_BYTES, self._address)
        return Accepted.parse(answer)

    @property
    def is_far(self) -> bool:
        """Whether a request waits so long for its answer that a connection's gap between two chunks counts."""
        return self._connector is not None and FAR_S <= self._connector.round_trip_s < float("inf")

    def bulk(self, *, encrypted: bool = False) -> BulkConnection:
        """A bulk connection, not yet open, to the place that answered `hello`.

        `encrypted` keeps it in TLS, whatever the settings allow.
        """
        reached = self._connector.reached.get(self._address) if self._connector is not None else None
        return self._bulk(reached or self._address, None if encrypted else self._clear)

    def _bulk(self, address: str, clear: ClearOffer | None = None) -> BulkConnection:
        return BulkConnection(
            self.peer,
            address,
            self._bulk_context,
            stall_s=self._settings.stall_timeout_s,
            deadline=self._deadline,
            throttle=self._throttle,
            clear=clear,
        )

    # requests

    async def _get(self, path: str, limit: int) -> bytes:
        return await self._ask(_Request("GET", path), limit, self._address)

    async def _send(self, method: str, path: str, data: bytes, headers: Mapping[str, str]) -> bytes:
        return await self._ask(_Request(method, path, data, headers), MAX_JSON_BYTES, self._address)

    async def _ask(self, request: _Request, limit: int, address: str) -> bytes:
        async with self._answer(request, address) as body:
            return await body.rest(limit)

    @asynccontextmanager
    async def _answer(self, request: _Request, address: str) -> AsyncIterator[AnswerBody]:
        """The body of the answer to a request. Raises what the peer refuses it with.

        `sock_read` alone ends neither headers that drip nor an answer that aiohttp cannot parse.
        """
        if self._session is None:
            raise UsageError("peer.client_closed", "the client is not open")
        stall = self._settings.stall_timeout_s
        begins_within = None if request.patient else 4 * stall + len(request.data or b"") / LEAST_RATE
        timeout = aiohttp.ClientTimeout(
            total=self._deadline.remaining(),
            sock_connect=min(CONNECT_S, stall),
            sock_read=stall,
            ceil_threshold=float("inf"),
        )
        try:
            async with (
                asyncio.timeout(begins_within) as beginning,
                self._session.request(
                    request.method,
                    f"https://{address}{request.path}",
                    data=request.data,
                    headers=request.headers,
                    timeout=timeout,
                    allow_redirects=False,
                ) as response,
            ):
                beginning.reschedule(None)  # the body looks after itself
                body = AnswerBody(response, stall)
                if response.status != 200:
                    raise remote_error(self.peer.name, response.status, await body.rest(MAX_JSON_BYTES))
                yield body
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            self._deadline.remaining()
            raise self._named(error) from error

    def _named(self, error: BaseException) -> KvsyncError | ProtocolError:
        """What an aiohttp error means: it hides the TLS one at the end of a chain of causes."""
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                return stream_error(cause)
            cause = cause.__cause__ or cause.__context__
        if isinstance(error, TimeoutError):
            return UnavailableError("peer.stalled", f"{self.peer.name} does not answer", hint="try again later")
        if isinstance(error, aiohttp.ClientConnectorError):
            number = error.os_error.errno or 0
            reason = os.strerror(number) if number > 0 else error.os_error.strerror or "the connection ended"
            return UnavailableError("peer.unreachable", reason.lower())
        return UnavailableError("peer.closed", f"{self.peer.name} ended the connection: {error}")


def _clear_offer(peer: Peer, identity: NodeIdentity, networks: Networks) -> ClearOffer | None:
    if not networks:
        return None
    return ClearOffer(networks, asking_context(identity, peer.keys, unencrypted.ALPN, bulk.ALPN))


class _PinnedConnector(aiohttp.TCPConnector):
    """Gives out a connection only after comparing the other side's key with the pins.

    `reached` maps an address as written to the one that answered: a name may stand for several. `round_trip_s` is
    the shortest that the kernel has measured.
    """

    def __init__(self, context: ssl.SSLContext, pins: tuple[PublicKey, ...]) -> None:
        super().__init__(ssl=context, limit=4 + MAX_ADDRESSES)
        self._pins = pins
        self.reached: dict[str, str] = {}
        self.round_trip_s = float("inf")
        self.opened: WeakSet[asyncio.Transport] = WeakSet()

    async def connect(self, req: aiohttp.ClientRequest, *args: Any, **kwargs: Any) -> Connection:
        connection = await super().connect(req, *args, **kwargs)
        try:
            if connection.transport is None:
                raise UnavailableError("peer.closed", "the peer closed the connection")
            self.opened.add(connection.transport)
            check_peer(connection.transport.get_extra_info("ssl_object"), self._pins, routes.CONTROL_ALPN)
            line = connection.transport.get_extra_info("socket")
            self.round_trip_s = min(self.round_trip_s, round_trip_s(line))
            place = connection.transport.get_extra_info("peername")
            reached = join_address(host_of(place), place[1])
            self.reached[join_address(req.url.host or "", req.url.port or 0)] = reached
        except BaseException:
            connection.close()
            raise
        return connection
