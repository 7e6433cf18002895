"""What a daemon tells its registries: the embedded one and those in `registries.json`, each in a task of its own.

    store, lists ─► Holdings ─► Picture ─┬─► RegistryLink ─► embedded registry
                       (when changed)    └─► RegistryLink ─► each listed registry

A registry that is away, refuses or answers nonsense keeps nobody waiting: its state is shown, and it is told later.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kvsync.config import Home, Settings
from kvsync.daemon.board import Signal
from kvsync.daemon.embedded import EmbeddedRegistry
from kvsync.daemon.holdings import OWN_MEMBERS, Holdings, Picture
from kvsync.daemon.network_status import RegistryState
from kvsync.errors import KvsyncError
from kvsync.keys import KeySpread, ListedRegistry, NodeKeys, Peer, PeerBook, RegistryBook, TrustList
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.registry_client import RegistryClient
from kvsync.peer.registry_link import RegistryLink
from kvsync.peer.registry_port import LocalRegistry, RegistryPort
from kvsync.peer.registry_vouching import Vouching
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import CodedError
from kvsync_protocol.signing import SigningKey

TICK_S: Final = 1.0
"""How often the store and the lists are looked at."""
CONTACT_S: Final = 60.0
"""A registry that was told everything is greeted again after so long."""
REQUEST_S: Final = 60.0
FIRST_PAUSE_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
EMBEDDED: Final = "this node"

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Told:
    """One registry as this node sees it."""

    name: str
    address: str
    key: str
    audience: str
    connect: Callable[[NodeKeys], RegistryPort]
    state: str = "new"
    code: str = ""
    due: int = 0
    spoken: float | None = None
    task: asyncio.Task[None] | None = None


class Network:
    """For one event loop. `addresses` are where peers reach this node; `epoch` is this start's."""

    def __init__(
        self,
        home: Home,
        store: Store,
        keys: NodeKeys,
        trust: TrustList,
        settings: Settings,
        *,
        addresses: tuple[str, ...],
        epoch: int,
        embedded: EmbeddedRegistry | None,
    ) -> None:
        self._keys = keys
        self._settings = settings
        self._addresses = addresses
        self._epoch = epoch
        self._book = RegistryBook(home)
        self._spread = KeySpread(home, trust)
        self._holdings = Holdings(store, trust, PeerBook(home))
        self._picture = Picture()
        self._changed = Signal()
        self._told: dict[str, _Told] = {}
        self._embedded = embedded

    def states(self) -> tuple[RegistryState, ...]:
        now = time.monotonic()
        return tuple(
            RegistryState(
                told.name,
                told.address,
                told.key,
                told.state,
                told.code,
                told.due,
                None if told.spoken is None else int(now - told.spoken),
            )
            for told in self._told.values()
        )

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self._embedded is not None:
                registry, own = self._embedded.registry, self._keys.peer.public
                told = _Told(
                    EMBEDDED, "", str(own), OWN_MEMBERS, lambda keys: LocalRegistry(registry, keys.peer.public)
                )
                self._begin(group, told)
                group.create_task(self._embedded.sweep(), name="registry-sweep")
            while True:
                await self._look()
                await self._follow_list(group)
                await asyncio.sleep(TICK_S)

    async def _look(self) -> None:
        try:
            if await asyncio.to_thread(self._holdings.changed):
                picture = await asyncio.to_thread(self._holdings.look)
                if picture != self._picture:
                    self._picture = picture
                    self._changed.fire()
        except CodedError as error:
            logger.warning("what is here cannot be told: %s", error)

    async def _follow_list(self, group: asyncio.TaskGroup) -> None:
        """One task for each listed registry; one whose entry changed is begun anew."""
        try:
            listed = {each.name: each for each in await asyncio.to_thread(self._book.registries)}
        except CodedError as error:
            logger.error("the list of registries cannot be read: %s", error)
            return
        for name, told in list(self._told.items()):
            if told.address and (name not in listed or not _same(told, listed[name])):
                del self._told[name]
                if told.task is not None:
                    told.task.cancel()
        for name, registry in listed.items():
            if name not in self._told:
                self._begin(group, self._listed(registry))

    def _listed(self, registry: ListedRegistry) -> _Told:
        peer = registry.peer
        return _Told(
            registry.name,
            " ".join(peer.addresses),
            " ".join(map(str, peer.keys)),
            registry.readers,
            lambda keys: self._client(peer, keys),
        )

    def _client(self, peer: Peer, keys: NodeKeys) -> RegistryClient:
        return RegistryClient(peer, NodeIdentity(keys.peer), self._settings, Deadline.after(REQUEST_S), self._spread)

    def _begin(self, group: asyncio.TaskGroup, told: _Told) -> None:
        self._told[told.name] = told
        told.task = group.create_task(self._keep(told), name=f"registry-{told.name}")

    async def _keep(self, told: _Told) -> None:
        """Tell one registry everything, and again whenever something changes or grows old."""
        pause = FIRST_PAUSE_S
        talk: _Talk | None = None
        while True:
            changed = self._changed.next()
            try:
                keys = await asyncio.to_thread(self._keys.current)
                if talk is None or talk.key.public != keys.peer.public:
                    talk = _Talk.begin(keys.peer, self._epoch, partial(told.connect, keys))
                await talk.say(self._picture, told.audience, self._addresses)
            except CodedError as error:
                told.state, told.code = ("away" if error.code == "registry.away" else "refused"), error.code
                logger.info("registry %s: %s", told.name, error)
            else:
                told.state, told.code = ("ok", "") if talk.reached else ("away", "peer.unreachable")
            told.due = 0 if talk is None else talk.link.due + len(talk.vouching.due())
            if told.state == "ok":
                told.spoken, pause = time.monotonic(), FIRST_PAUSE_S
            with suppress(TimeoutError):
                async with asyncio.timeout(CONTACT_S if told.state == "ok" else pause):
                    await changed.wait()
            if told.state != "ok":
                pause = min(2 * pause, LONGEST_PAUSE_S)


@dataclass(slots=True)
class _Talk:
    """What was said to one registry under one key."""

    key: SigningKey
    link: RegistryLink
    connect: Callable[[], RegistryPort]
    vouching: Vouching = field(default_factory=Vouching)
    offered: set[ArtifactId] = field(default_factory=set)
    reached: bool = False

    @classmethod
    def begin(cls, key: SigningKey, epoch: int, connect: Callable[[], RegistryPort]) -> _Talk:
        return cls(key, RegistryLink(key, epoch, connect), connect)

    async def say(self, picture: Picture, audience: str, addresses: tuple[str, ...]) -> None:
        """Raises CodedError when the registry refuses; one that is away leaves `reached` False."""
        holdings = {holding.artifact: holding for holding in picture.holdings(audience)}
        self.link.reach_at(addresses)
        for gone in self.offered - set(holdings):
            self.link.end(gone)
        for holding in holdings.values():
            self.link.offer(holding)
        self.offered = set(holdings)
        self.vouching.keep(picture.words(audience))
        self.reached = await self.link.tell()
        if self.reached and self.vouching.due():
            try:
                async with self.connect() as registry:
                    await registry.hello()
                    await self.vouching.tell(registry)
            except KvsyncError as error:
                logger.info("names were not told: %s", error)
                self.reached = False


def _same(told: _Told, registry: ListedRegistry) -> bool:
    peer = registry.peer
    return (told.address, told.key, told.audience) == (
        " ".join(peer.addresses),
        " ".join(map(str, peer.keys)),
        registry.readers,
    )
