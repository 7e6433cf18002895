"""A member of a registry that announces, withdraws and names without rest, and remembers what the registry took."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Final

from kvsync.config import Settings
from kvsync.errors import UnavailableError
from kvsync.keys import Peer
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.registry_client import RegistryClient
from kvsync_protocol.announcement import Announcement, Moment, Statement, Withdrawal
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey, sha256
from kvsync_protocol.ref import Ref
from kvsync_protocol.registry_messages import Vouched
from kvsync_protocol.signing import PublicKey, SigningKey

STATEMENTS: Final = 40
ARTIFACTS: Final = 8
NAME: Final = "teller/name"
_SETTINGS: Final = Settings(stall_timeout_s=10)


class Teller:
    """Synchronous; `registry` is set before anything is told."""

    registry: Peer

    def __init__(self, key: SigningKey) -> None:
        self.key = key
        self._offered: dict[ArtifactId, bool] = {}
        self._named = 0
        self._unsure: ArtifactId | None = None

    def tell(
        self,
        rng: random.Random,
        dead: Callable[[], bool],
        until: int | None = None,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Make statements until the registry is dead, or there were enough. After `until` of them, call `then`."""
        asyncio.run(self._tell(rng, dead, until, then))

    async def _tell(
        self,
        rng: random.Random,
        dead: Callable[[], bool],
        until: int | None,
        then: Callable[[], None],
    ) -> None:
        epoch = time.time_ns() // 1_000_000  # a later one: what was offered under those before ends with it
        self._offered, self._unsure = {}, None
        try:
            async with self._client() as client:
                await client.hello()
                for number in range(1, STATEMENTS + 1):
                    if number == until:
                        then()
                    if dead():
                        return
                    if number % 5 == 0:
                        await self._name(client, self._named + 1)
                    else:
                        await self._say(client, rng, Moment(epoch, number))
        except UnavailableError:
            if not dead():
                await asyncio.sleep(1)  # its connection ends before its process has
            if not dead():
                raise

    async def _say(self, client: RegistryClient, rng: random.Random, at: Moment) -> None:
        number = rng.randrange(ARTIFACTS)
        artifact = _artifact(number)
        offered = rng.random() < 0.7
        digest, keys = sha256(b"fingerprint"), tuple(_key(number, block) for block in range(1 + number))
        said: Statement = (
            Announcement(at, artifact, digest, digest, keys, 1000, ("members",), 3600)
            if offered
            else Withdrawal(at, artifact)
        )
        self._unsure = artifact
        outcome = (await client.declare([said.seal(self.key)])).outcomes
        if outcome != ("ok",):
            raise RuntimeError(f"the registry said {outcome}")
        self._offered[artifact], self._unsure = offered, None

    async def _name(self, client: RegistryClient, sequence: int) -> None:
        ref = Ref(NAME, _artifact(sequence % ARTIFACTS), sequence)
        await client.set_name(Vouched((self.key.public,), ref.seal(self.key), ("members",)))
        self._named = sequence

    def lost(self) -> list[str]:
        """What the registry took and knows no longer, or knows and was never told."""
        return asyncio.run(self._lost())

    async def _lost(self) -> list[str]:
        found = []
        async with self._client() as client:
            await client.hello()
            for artifact, offered in self._offered.items():
                told = self.key.public in await _providers(client, artifact)
                if told != offered and artifact != self._unsure:
                    found.append(f"{artifact.short} was {'announced' if offered else 'withdrawn'} in vain")
            refs = (await client.names(name=NAME)).refs
            sequences = [_sequence(envelope.payload) for envelope in refs]
            if self._named and (len(sequences) != 1 or sequences[0] not in (self._named, self._named + 1)):
                found.append(f"the name is at {sequences}, not at {self._named}")
            self._named = max([self._named, *sequences])
        return found

    def providers(self, artifact: ArtifactId) -> set[PublicKey]:
        """Whom the registry names for an artifact."""

        async def ask() -> set[PublicKey]:
            async with self._client() as client:
                await client.hello()
                return await _providers(client, artifact)

        return asyncio.run(ask())

    def _client(self) -> RegistryClient:
        return RegistryClient(self.registry, NodeIdentity(self.key), _SETTINGS, Deadline.after(60))


async def _providers(client: RegistryClient, artifact: ArtifactId) -> set[PublicKey]:
    found = await client.providers(artifact)
    return {provider.key for match in found.matches for provider in match.providers}


def _sequence(payload: bytes) -> int:
    return int(json.loads(payload)["sequence"])


def _artifact(number: int) -> ArtifactId:
    return ArtifactId(sha256(f"told {number}".encode()))


def _key(number: int, block: int) -> PrefixKey:
    return PrefixKey(Digest(sha256(f"told {number} {block}".encode()).raw))
