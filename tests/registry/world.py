"""A registry with members and a clock that tests turn, and prompts whose blocks are single numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from kvsync_protocol.announcement import Announcement, Contact, Moment, Statement, Withdrawal
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey, hash_record, sha256
from kvsync_protocol.registry_messages import Matches, Outcomes, PrefixQuery
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_registry.config import RegistryLimits
from kvsync_registry.member import Member
from kvsync_registry.service import Registry
from kvsync_registry.store import RegistryStore

START = 1_800_000_000


def key(name: str) -> SigningKey:
    return SigningKey(hashlib.sha256(name.encode()).digest())


def chain(blocks: Sequence[object]) -> tuple[PrefixKey, ...]:
    """Prefix keys as they are chained: each depends on all before it."""
    found: list[PrefixKey] = []
    before = b""
    for block in blocks:
        before = hash_record("test", [before, str(block).encode()]).raw
        found.append(PrefixKey(Digest(before)))
    return tuple(found)


def artifact(name: object) -> ArtifactId:
    return ArtifactId(sha256(f"artifact {name}".encode()))


class World:
    """`host` names are keys; each has an epoch and a sequence that grows by itself."""

    def __init__(self, store: RegistryStore, limits: RegistryLimits | None = None) -> None:
        self.now = START
        self.members: dict[PublicKey, Member] = {}
        self.registry = Registry(store, self, limits=limits, clock=lambda: self.now)
        self.store = store
        self.moments: dict[str, Moment] = {}

    def find(self, caller: PublicKey) -> Member | None:
        return self.members.get(caller)

    def join(self, *names: str, tenant: str | None = None, **rights: object) -> None:
        for name in names:
            public = key(name).public
            given = {"publish": True, **rights}
            self.members[public] = Member(public, tenant, **given)  # type: ignore[arg-type]

    def next(self, host: str, *, epoch: int | None = None) -> Moment:
        before = self.moments.get(host, Moment(1, 0))
        at = Moment(before.epoch, before.sequence + 1) if epoch is None else Moment(epoch, 1)
        self.moments[host] = at
        return at

    def announcement(
        self,
        host: str,
        name: object,
        blocks: Sequence[object],
        *,
        readers: Sequence[str] = ("members",),
        ttl_s: int = 3600,
        size: int = 1000,
        at: Moment | None = None,
    ) -> Announcement:
        digest = sha256(b"fingerprint")
        at = at or self.next(host)
        return Announcement(at, artifact(name), digest, digest, chain(blocks), size, tuple(sorted(readers)), ttl_s)

    def say(self, host: str, *statements: Statement) -> Outcomes:
        return self.registry.declare(key(host).public, [one.seal(key(host)) for one in statements])

    def announce(self, host: str, name: object, blocks: Sequence[object], **options: object) -> str:
        [outcome] = self.say(host, self.announcement(host, name, blocks, **options)).outcomes  # type: ignore[arg-type]
        return outcome

    def withdraw(self, host: str, name: object | None) -> str:
        named = None if name is None else artifact(name)
        return self.say(host, Withdrawal(self.next(host), named)).outcomes[0]

    def reach(self, host: str, *addresses: str, ttl_s: int = 3600) -> str:
        return self.say(host, Contact(self.next(host), addresses, ttl_s)).outcomes[0]

    def restart(self, host: str) -> None:
        self.next(host, epoch=self.moments.get(host, Moment(1, 0)).epoch + 1)
        self.moments[host] = Moment(self.moments[host].epoch, 0)

    def lookup(self, host: str, blocks: Sequence[object]) -> Matches:
        return self.registry.lookup(key(host).public, PrefixQuery(chain(blocks)))

    def find_names(
        self, host: str, blocks: Sequence[object], names: Sequence[object]
    ) -> tuple[int, dict[object, set[str]]]:
        """How many blocks are shared, and who serves which of `names`."""
        found = self.lookup(host, blocks)
        known = {artifact(name): name for name in names}
        hosts = {public: name for name in HOSTS for public in [key(name).public]}
        return found.shared, {known[m.artifact]: {hosts[p.key] for p in m.providers} for m in found.matches}


HOSTS = ("alpha", "beta", "gamma", "delta")
