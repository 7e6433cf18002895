"""What peers and registries say: refs by name, and who may have an artifact. Collected, not believed.

Each is asked on its own, with a deadline; one that does not answer is asked less often and holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

from kvsync.config import Settings
from kvsync.keys import KeySpread, NodeKeys, Peer, PeerBook, RegistryBook, split_address
from kvsync.keys.peers import MAX_ADDRESSES
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.names_client import NamesClient
from kvsync.peer.registry_client import RegistryClient
from kvsync.peer.registry_port import LocalRegistry, RegistryPort
from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import CodedError
from kvsync_protocol.messages import RefList
from kvsync_protocol.ref import Ref
from kvsync_protocol.registry_messages import Match, Matches
from kvsync_registry.service import Registry

ASK_S: Final = 30.0
AT_ONCE: Final = 8
MAX_PAGES: Final = 100
LONGEST_PAUSE_S: Final = 900.0

A = TypeVar("A")
C = TypeVar("C", RegistryClient, NamesClient)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Origins:
    """Known peers that may have something, by the names they have here, and where else they were said to be."""

    peers: tuple[str, ...] = ()
    hints: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Heard:
    """A ref somebody showed: `peer` is set when a peer did, who then has its artifact as well."""

    envelope: Envelope
    name: str
    artifact: ArtifactId
    sequence: int
    peer: str | None


class _Names(Protocol):
    async def names(self, *, after: str = "") -> RefList: ...


@dataclass(slots=True)
class Hearsay:
    """Asks under this node's key. `embedded` is its own registry, where there is one."""

    keys: NodeKeys
    spread: KeySpread
    settings: Settings
    book: PeerBook
    registries: RegistryBook
    embedded: Registry | None = None
    _quiet: dict[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def silent(self) -> int:
        """How many did not answer when they were last asked."""
        return len(self._quiet)

    async def refs(self) -> list[Heard]:
        """Every ref that peers and registries show. Raises StoreError `peers.damaged`, `registries.damaged`."""
        peers = [peer for peer in await asyncio.to_thread(self.book.peers) if peer.addresses and peer.keys]
        asked: list[tuple[str, Callable[[], Awaitable[list[Heard]]]]] = [
            (f"peer {peer.name}", partial(self._peer_refs, peer)) for peer in peers
        ]
        asked += [
            (f"registry {name}", partial(self._registry_refs, connect))
            for name, connect in await asyncio.to_thread(self._ports, ())
        ]
        return [heard for found in await self._ask_all(asked) for heard in found]

    async def providers(self, artifact: ArtifactId) -> Origins:
        """Known peers that registries name for an artifact."""
        asked: list[tuple[str, Callable[[], Awaitable[Matches]]]] = [
            (f"registry {name}", partial(_providers, connect, artifact))
            for name, connect in await asyncio.to_thread(self._ports, ())
        ]
        found = [match for matches in await self._ask_all(asked) for match in matches.matches]
        return await asyncio.to_thread(self.known, found, artifact)

    async def longest(self, keys: Sequence[PrefixKey]) -> list[tuple[int, Match]]:
        """What registries, and peers from their own, name for the longest prefix of `keys`; the longest first."""
        peers = [peer for peer in await asyncio.to_thread(self.book.peers) if peer.addresses and peer.keys]
        asked: list[tuple[str, Callable[[], Awaitable[Matches]]]] = [
            (f"registry {name}", partial(_lookup, connect, keys))
            for name, connect in await asyncio.to_thread(self._ports, tuple(peers))
        ]
        found = [(m.shared, match) for m in await self._ask_all(asked) for match in m.matches]
        return sorted(found, key=lambda each: -each[0])

    def known(self, matches: Iterable[Match], artifact: ArtifactId) -> Origins:
        """The providers of an artifact that are peers of this node: nobody else is ever connected to."""
        peers: dict[str, None] = {}
        hints: dict[tuple[str, str], None] = {}
        for match in matches:
            for provider in match.providers if match.artifact == artifact else ():
                peer = self.book.by_key(provider.key)
                if peer is None or not peer.keys:
                    continue
                peers[peer.name] = None
                for address in provider.addresses[:MAX_ADDRESSES]:
                    if _is_address(address) and address not in peer.addresses:
                        hints[peer.name, address] = None
        return Origins(tuple(peers), tuple(hints))

    def _ports(self, peers: tuple[Peer, ...]) -> list[tuple[str, Callable[[], RegistryPort]]]:
        """Ways to the embedded registry, to those listed, and to those that `peers` embed; each key once."""
        found: list[tuple[str, Callable[[], RegistryPort]]] = []
        if self.embedded is not None:
            embedded = self.embedded
            found.append(("this node", lambda: LocalRegistry(embedded, self.keys.current().peer.public)))
        listed = {each.peer.key: each.peer for each in self.registries.registries() if each.peer.keys}
        for peer in {**{peer.key: peer for peer in peers}, **listed}.values():
            found.append((peer.name, partial(self._client, RegistryClient, peer)))
        return found

    def _client(self, kind: type[C], peer: Peer) -> C:
        identity = NodeIdentity(self.keys.current().peer)
        return kind(peer, identity, self.settings, Deadline.after(ASK_S), self.spread)

    async def _peer_refs(self, peer: Peer) -> list[Heard]:
        async with self._client(NamesClient, peer) as client:
            await client.hello()
            return [_heard(envelope, peer.name) for envelope in await _pages(client)]

    async def _registry_refs(self, connect: Callable[[], RegistryPort]) -> list[Heard]:
        async with connect() as registry:
            await registry.hello()
            return [_heard(envelope, None) for envelope in await _pages(registry)]

    async def _ask_all(self, asked: Sequence[tuple[str, Callable[[], Awaitable[A]]]]) -> list[A]:
        """The answers of those that answer, in the order of `asked`."""
        gate = asyncio.Semaphore(AT_ONCE)
        quiet = {name: state for name, state in self._quiet.items() if name in {n for n, _ in asked}}

        async def one(name: str, call: Callable[[], Awaitable[A]]) -> list[A]:
            failures, until = quiet.get(name, (0, 0.0))
            if time.monotonic() < until:
                return []
            try:
                async with gate, asyncio.timeout(ASK_S):
                    answer = await call()
            except (CodedError, TimeoutError) as error:
                pause = min(self.settings.follow_interval_s * 2**failures, LONGEST_PAUSE_S)
                self._quiet[name] = (min(failures + 1, 16), time.monotonic() + pause)
                log.info("%s gives no answer: %s", name, error or "too slow")
                return []
            self._quiet.pop(name, None)
            return [answer]

        found = await asyncio.gather(*(one(name, call) for name, call in asked))
        return [answer for answers in found for answer in answers]


async def _pages(source: _Names) -> list[Envelope]:
    found: list[Envelope] = []
    after = ""
    for _ in range(MAX_PAGES):
        page = await source.names(after=after)
        found += page.refs
        last = _heard(page.refs[-1], None).name if page.refs else after
        if not page.more or last <= after:
            break
        after = last
    return found


async def _providers(connect: Callable[[], RegistryPort], artifact: ArtifactId) -> Matches:
    async with connect() as registry:
        await registry.hello()
        return await registry.providers(artifact)


async def _lookup(connect: Callable[[], RegistryPort], keys: Sequence[PrefixKey]) -> Matches:
    async with connect() as registry:
        await registry.hello()
        return await registry.lookup(keys)


def _heard(envelope: Envelope, peer: str | None) -> Heard:
    """What a ref says, nobody's signature judged. Raises MalformedError, TrustError as `Ref.parse`."""
    ref = Ref.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))
    return Heard(envelope, ref.name, ref.artifact, ref.sequence, peer)


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except CodedError:
        return False
    return True
