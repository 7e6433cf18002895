"""`RegistryLink`: what this host tells one registry and asks of it. A registry that is away is no error.

What is offered here is told again before half of its time to live has passed, and all of it anew when the registry
turns out to know another epoch. A statement that may or may not have arrived is simply made again, later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from kvsync.errors import UnavailableError
from kvsync.peer.registry_port import RegistryPort
from kvsync_protocol.announcement import Announcement, Contact, Moment, Statement, Withdrawal
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.limits import MAX_JSON_BYTES
from kvsync_protocol.registry_messages import Matches
from kvsync_protocol.signing import SigningKey

TTL_S: Final = 3600
MAX_BATCH: Final = 500
BATCH_BYTES: Final = MAX_JSON_BYTES // 4
STALE: Final = "registry.stale"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Holding:
    """An artifact that this host serves, and to whom it may be shown; `size` is in bytes."""

    artifact: ArtifactId
    compatibility: Digest
    numerics: Digest
    keys: tuple[PrefixKey, ...]
    size: int
    readers: tuple[str, ...]


class RegistryLink:
    """For one event loop. `epoch` must grow with every start of this host; `connect` makes a client, not yet open."""

    def __init__(
        self,
        key: SigningKey,
        epoch: int,
        connect: Callable[[], RegistryPort],
        *,
        ttl_s: int = TTL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._key = key
        self._at = Moment(epoch, 0)
        self._connect = connect
        self._ttl_s = ttl_s
        self._clock = clock
        self._holdings: dict[ArtifactId, Holding] = {}
        self._told: dict[ArtifactId, float] = {}
        self._ended: set[ArtifactId] = set()
        self._addresses: tuple[str, ...] = ()
        self._contact_told: float | None = None

    def offer(self, holding: Holding) -> None:
        """Announce it at the next `tell`, and from then on."""
        if self._holdings.get(holding.artifact) != holding:
            self._holdings[holding.artifact] = holding
            self._told.pop(holding.artifact, None)
        self._ended.discard(holding.artifact)

    def end(self, artifact: ArtifactId) -> None:
        """Withdraw it at the next `tell`."""
        if self._holdings.pop(artifact, None) is not None:
            self._told.pop(artifact, None)
            self._ended.add(artifact)

    def reach_at(self, addresses: Sequence[str]) -> None:
        """Say at the next `tell` where this host can be reached."""
        if tuple(addresses) != self._addresses:
            self._addresses = tuple(addresses)
            self._contact_told = None

    async def tell(self) -> bool:
        """Say all that is due. False when the registry could not be reached; nothing is lost by that.

        Raises:
            TrustError, PolicyError: the registry is another than the pinned one, or does not want this host.
        """
        try:
            async with self._connect() as client:
                await client.hello()
                while batch := self._batch():
                    await self._send(client, batch)
        except UnavailableError as error:
            log.info("the registry was not told: %s", error)
            return False
        return True

    async def find(self, keys: Sequence[PrefixKey]) -> Matches:
        """Who has most of these blocks, as far as the registry knows and answers."""
        if not keys:
            return Matches(0, ())
        try:
            async with self._connect() as client:
                await client.hello()
                return await client.lookup(keys)
        except UnavailableError as error:
            log.info("the registry was not asked: %s", error)
            return Matches(0, ())

    @property
    def due(self) -> int:
        """How many statements the registry has still to hear."""
        return sum(1 for _ in self._due())

    def _due(self) -> Iterator[Callable[[Moment], Statement]]:
        now = self._clock()

        def stale(told: float | None) -> bool:
            return told is None or now - told > self._ttl_s / 2

        if self._addresses and stale(self._contact_told):
            yield partial(Contact, addresses=self._addresses, ttl_s=self._ttl_s)
        for artifact in list(self._ended):
            yield partial(Withdrawal, artifact=artifact)
        for one in list(self._holdings.values()):
            if stale(self._told.get(one.artifact)):
                yield partial(
                    Announcement,
                    artifact=one.artifact,
                    compatibility=one.compatibility,
                    numerics=one.numerics,
                    keys=one.keys,
                    size=one.size,
                    readers=one.readers,
                    ttl_s=self._ttl_s,
                )

    def _batch(self) -> list[tuple[Statement, Envelope]]:
        """What is due, as much as one request takes."""
        found: list[tuple[Statement, Envelope]] = []
        size = 0
        for make in islice(self._due(), MAX_BATCH):
            self._at = Moment(self._at.epoch, self._at.sequence + 1)
            statement = make(self._at)
            envelope = statement.seal(self._key)
            found.append((statement, envelope))
            size += len(envelope.payload)
            if size > BATCH_BYTES:
                break
        return found

    async def _send(self, client: RegistryPort, batch: Sequence[tuple[Statement, Envelope]]) -> None:
        answer = await client.declare([envelope for _, envelope in batch])
        if STALE in answer.outcomes:
            # Its memory is ahead of this host's clock: start again above it, and say everything anew.
            self._at = Moment(answer.epoch + 1, 0)
            self._told.clear()
            self._contact_told = None
            return
        now = self._clock()
        for (statement, _), outcome in zip(batch, answer.outcomes, strict=True):
            if outcome != "ok":
                log.warning("the registry did not take a statement: %s", outcome)
            match statement:
                case Announcement():
                    self._told[statement.artifact] = now
                case Withdrawal(artifact=artifact) if artifact is not None:
                    self._ended.discard(artifact)
                case _:
                    self._contact_told = now
