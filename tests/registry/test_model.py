"""All stores through the same random history, compared with each other and with a list that is read through."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from kvsync_protocol.announcement import Announcement, Moment, Statement, Withdrawal
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.reader import tenant
from kvsync_registry.config import RegistryLimits
from kvsync_registry.memory import MemoryRegistryStore
from kvsync_registry.postgres import PostgresRegistryStore
from kvsync_registry.sqlite import SqliteRegistryStore
from tests.registry.world import World, artifact, key

HOSTS = ("alpha", "beta", "gamma")
LIMITS = RegistryLimits(offers=4, entries=22, least_ttl_s=10, most_ttl_s=100)
TENANTS = {"alpha": "red", "beta": "red", "gamma": None}
READERS = [("members",), (tenant("red"),), (str(key("gamma").public),), ("members", tenant("red"))]
PROMPTS = st.lists(st.integers(0, 1), max_size=5).map(tuple)
NAMES = st.integers(0, 5)


@dataclass
class Offer:
    prompt: tuple[int, ...]
    readers: tuple[str, ...]
    expires: int


class Listed:
    """What a registry should know, written down plainly."""

    def __init__(self) -> None:
        self.latest: dict[str, tuple[int, int]] = {}
        self.offers: dict[tuple[str, int], Offer] = {}

    def alive(self, host: str, now: int) -> dict[int, Offer]:
        return {n: one for (who, n), one in self.offers.items() if who == host and one.expires > now}

    def hear(self, host: str, statement: Statement, name: int | None, prompt: tuple[int, ...], now: int) -> str:
        at = (statement.at.epoch, statement.at.sequence)
        if at <= self.latest.get(host, (0, 0)):
            return "registry.stale"
        fresh = at[0] > self.latest.get(host, (0, 0))[0]
        if fresh or (isinstance(statement, Withdrawal) and name is None):
            self.offers = {where: one for where, one in self.offers.items() if where[0] != host}
        self.latest[host] = at
        if isinstance(statement, Withdrawal):
            self.offers.pop((host, name), None)  # type: ignore[arg-type]
            return "ok"
        assert isinstance(statement, Announcement)
        assert name is not None
        expires = now + min(max(statement.ttl_s, LIMITS.least_ttl_s), LIMITS.most_ttl_s)
        new = Offer(prompt, statement.readers, expires)
        others = [one for n, one in self.alive(host, now).items() if n != name]
        if len(others) >= LIMITS.offers or sum(map(rows, others)) + rows(new) > LIMITS.entries:
            return "registry.full"
        self.offers[host, name] = new
        return "ok"

    def lookup(self, host: str, prompt: tuple[int, ...], now: int) -> tuple[int, set[tuple[ArtifactId, str]]]:
        mine = {"members", str(key(host).public), tenant(TENANTS[host]) if TENANTS[host] else ""}
        seen = [
            (shared(one.prompt, prompt), artifact(name), who)
            for (who, name), one in self.offers.items()
            if one.expires > now and mine & set(one.readers)
        ]
        most = max((length for length, _, _ in seen), default=0)
        return most, {(name, who) for length, name, who in seen if length == most and most}


def rows(offer: Offer) -> int:
    return (1 + len(offer.prompt)) * len(offer.readers)


def shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


class AllStores(RuleBasedStateMachine):
    folder: Path
    database: str

    @initialize()
    def begin(self) -> None:
        stores = [
            MemoryRegistryStore(),
            SqliteRegistryStore(self.folder / "registry.sqlite"),
            PostgresRegistryStore(self.database),
        ]
        self.worlds = [World(store, LIMITS) for store in stores]
        for world in self.worlds:
            for host, name in TENANTS.items():
                world.join(host, tenant=name)
        self.listed = Listed()
        self.moments = dict.fromkeys(HOSTS, Moment(1, 0))
        self.now = self.worlds[0].now

    def say(self, host: str, statement: Statement, name: int | None, prompt: tuple[int, ...] = ()) -> None:
        expected = self.listed.hear(host, statement, name, prompt, self.now)
        assert [world.say(host, statement).outcomes for world in self.worlds] == [(expected,)] * 3

    def next(self, host: str, back: int = 0) -> Moment:
        before = self.moments[host]
        self.moments[host] = Moment(before.epoch, before.sequence + 1)
        return Moment(before.epoch, max(1, before.sequence + 1 - back))

    @rule(
        host=st.sampled_from(HOSTS),
        name=NAMES,
        prompt=PROMPTS,
        readers=st.sampled_from(READERS),
        ttl_s=st.sampled_from([1, 30, 500]),
        back=st.sampled_from([0, 0, 0, 2]),
    )
    def announce(
        self, host: str, name: int, prompt: tuple[int, ...], readers: tuple[str, ...], ttl_s: int, back: int
    ) -> None:
        at = self.next(host, back)
        said = self.worlds[0].announcement(host, name, prompt, readers=readers, ttl_s=ttl_s, at=at)
        self.say(host, said, name, prompt)

    @rule(host=st.sampled_from(HOSTS), name=NAMES | st.none())
    def withdraw(self, host: str, name: int | None) -> None:
        self.say(host, Withdrawal(self.next(host), None if name is None else artifact(name)), name)

    @rule(host=st.sampled_from(HOSTS))
    def restart(self, host: str) -> None:
        self.moments[host] = Moment(self.moments[host].epoch + 1, 0)

    @rule(seconds=st.sampled_from([1, 9, 29, 99]))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        for world in self.worlds:
            world.now = self.now

    @rule()
    def sweep(self) -> None:
        assert len({world.registry.sweep() for world in self.worlds}) == 1

    @rule(host=st.sampled_from(HOSTS), prompt=PROMPTS.filter(len))
    def ask(self, host: str, prompt: tuple[int, ...]) -> None:
        found = [world.lookup(host, prompt) for world in self.worlds]
        assert found[0] == found[1] == found[2]
        hosts = {key(name).public: name for name in HOSTS}
        pairs = {(match.artifact, hosts[one.key]) for match in found[0].matches for one in match.providers}
        assert (found[0].shared, pairs) == self.listed.lookup(host, prompt, self.now)

    @invariant()
    def every_store_lists_the_same_providers(self) -> None:
        if not hasattr(self, "worlds"):
            return
        for name in range(0, 6, 5):
            found = [world.registry.providers(key("gamma").public, artifact(name)) for world in self.worlds]
            assert found[0] == found[1] == found[2]

    def teardown(self) -> None:
        if not hasattr(self, "worlds"):
            return
        import psycopg

        for world in self.worlds:
            world.store.close()
        (self.folder / "registry.sqlite").unlink()
        for end in ("-wal", "-shm"):
            (self.folder / f"registry.sqlite{end}").unlink(missing_ok=True)
        with psycopg.connect(self.database, autocommit=True) as db:
            db.execute("TRUNCATE providers, claims, entries, offers RESTART IDENTITY CASCADE")


def test_all_stores_live_through_the_same_history(database: str, tmp_path: Path) -> None:
    PostgresRegistryStore(database).close()
    machine = type("Stores", (AllStores,), {"folder": tmp_path, "database": database})
    limits = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=limits)
