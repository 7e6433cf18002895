"""Several processes over one database, some of them killed: nothing taken is lost, no row contradicts another."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from benchmarks.registry import open_store
from benchmarks.soundness import row_problems
from kvsync_protocol.errors import TrustError
from kvsync_protocol.ref import Ref
from kvsync_protocol.registry_messages import Vouched
from kvsync_registry.config import RegistryLimits
from kvsync_registry.errors import FullError, UnavailableError
from tests.registry.replica import HOSTS, LIMITS
from tests.registry.world import World, artifact, key

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "registry.sqlite")
    return str(request.getfixturevalue("database"))


def query(where: str) -> Callable[[str], list[tuple[Any, ...]]]:
    def ask(text: str) -> list[tuple[Any, ...]]:
        if where.endswith(".sqlite"):
            db = sqlite3.connect(where)
            try:
                return db.execute(text).fetchall()
            finally:
                db.close()
        with psycopg.connect(where) as pg:
            return pg.execute(text).fetchall()

    return ask


def check_rows(where: str) -> None:
    """Every row agrees with every other."""
    ask = query(where)
    assert row_problems(ask) == []
    for (count,) in ask(
        "SELECT count(*) FROM offers o JOIN providers p ON p.id = o.provider AND p.generation = o.generation"
        " GROUP BY p.id"
    ):
        assert count <= LIMITS.offers + 30  # expired ones wait for a sweep


class Replica:
    """A process and what it said."""

    def __init__(self, where: str, seed: int) -> None:
        command = [sys.executable, "-m", "tests.registry.replica", where, str(seed)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line)

    def until(self, lines: int) -> None:
        """Wait until it has said so many lines."""
        deadline = time.monotonic() + 60
        while len(self.said) < lines:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def kill(self) -> list[str]:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return self.said


def test_replicas_killed_at_any_moment_leave_a_sound_registry(where: str) -> None:
    open_store(where).close()
    rng = random.Random(7)
    running = [Replica(where, seed) for seed in range(3)]
    said: list[str] = []
    for seed in range(3, 11):
        victim = running.pop(rng.randrange(len(running)))
        victim.until(rng.randint(2, 12))
        time.sleep(rng.uniform(0, 0.05))
        said += victim.kill()
        running.append(Replica(where, seed))
    for replica in running:
        replica.until(2)
        said += replica.kill()
    whole = [line.split() for line in said if line.endswith("\n")]  # the last words of the killed may be torn
    taken = [words for words in whole if words[0] in HOSTS]
    assert len(taken) > 30
    check_rows(where)

    kept = {
        bytes(raw): (epoch, sequence)
        for raw, epoch, sequence in query(where)("SELECT key, epoch, sequence FROM providers")
    }
    for host in HOSTS:
        most = max((int(epoch), int(sequence)) for name, epoch, sequence in taken if name == host)
        assert kept[key(host).public.raw] >= most

    world = World(open_store(where), LIMITS)
    world.join(*HOSTS)
    world.now += 10_000
    world.registry.sweep()
    check_rows(where)
    assert query(where)("SELECT (SELECT count(*) FROM claims) + (SELECT count(*) FROM entries)") == [(0,)]
    for host in HOSTS:
        world.next(host, epoch=10**12)
        assert world.announce(host, "last", [host]) == "ok"
        assert world.lookup(host, [host]).shared == 1
    world.store.close()


def both(work: Callable[[int], None], count: int = 4) -> None:
    """`work` in threads, all at once; the first error is raised here."""
    failed: list[Exception] = []

    def one(number: int) -> None:
        try:
            work(number)
        except Exception as error:  # noqa: BLE001  raised below, in the test's own thread
            failed.append(error)

    threads = [threading.Thread(target=one, args=[number]) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


def test_the_rules_of_names_hold_among_replicas(where: str) -> None:
    worlds = [World(open_store(where), RegistryLimits(refs=3)) for _ in range(4)]
    for world in worlds:
        world.join("alpha")

    def race(number: int) -> None:
        rng = random.Random(number)
        for _ in range(25):
            sequence = rng.randrange(1, 1000)
            name = rng.choice(["a", "b", "c", "d", "e"])
            sealed = Ref(name, artifact(sequence), sequence).seal(key("s"))
            try:
                vouched = Vouched((key("s").public,), sealed, ("members",))
                worlds[number].registry.set_ref(key("alpha").public, vouched)
                taken.append((name, sequence))
            except (TrustError, FullError):
                continue

    taken: list[tuple[str, int]] = []
    both(race)
    rows = query(where)("SELECT name, sequence, artifact FROM refs ORDER BY name")
    assert len(rows) == 3
    for name, sequence, target in rows:
        assert sequence == max(number for other, number in taken if other == name)
        assert bytes(target) == artifact(sequence).raw
    assert query(where)("SELECT count(*) FROM ref_readers") == [(3,)]
    for world in worlds:
        world.store.close()


def test_replicas_that_announce_the_same_artifacts_in_any_order_wait_for_each_other(where: str) -> None:
    worlds = [World(open_store(where)) for _ in range(4)]
    for world in worlds:
        world.join(*(f"host{number}" for number in range(4)))

    def race(number: int) -> None:
        rng = random.Random(number)
        host, world = f"host{number}", worlds[number]
        for _ in range(8):
            names = rng.sample(range(40), 20)
            said = [world.announcement(host, name, ["all", name]) for name in names]
            assert set(world.say(host, *said).outcomes) == {"ok"}
            world.withdraw(host, None)
            world.registry.sweep()

    both(race)
    check_rows(where)
    assert worlds[0].lookup("host0", ["all"]).shared == 0
    for world in worlds:
        world.store.close()


def test_a_database_that_went_away_is_used_again_when_it_is_back(database: str) -> None:
    world = World(open_store(database))
    world.join("alpha")
    world.announce("alpha", "a", "abc")
    both(lambda _: [world.lookup("alpha", "abc") for _ in range(20)] and None, 8)
    with psycopg.connect(database, autocommit=True) as db:
        row = db.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()").fetchone()
        assert row is not None
        assert row[0] > 3
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
            " AND datname = current_database()"
        )
    assert world.lookup("alpha", "abc").shared == 3
    assert world.announce("alpha", "b", "xyz") == "ok"
    world.store.close()


def test_a_second_store_of_one_process_leaves_the_locks_of_the_first(tmp_path: Path) -> None:
    """Or a replica that ends would take the log away in which this process writes."""
    path = tmp_path / "registry.sqlite"
    world = World(open_store(str(path)))
    world.join("alpha")
    world.announce("alpha", "a", "abc")
    log = path.with_name("registry.sqlite-wal")
    before = log.stat().st_ino
    open_store(str(path)).close()
    code = "import sys; from benchmarks.registry import open_store; open_store(sys.argv[1]).close()"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, cwd=ROOT)
    assert log.stat().st_ino == before
    world.store.close()


def test_a_newer_database_is_refused(where: str) -> None:
    open_store(where).close()
    if where.endswith(".sqlite"):
        db = sqlite3.connect(where)
        db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        with psycopg.connect(where) as pg:
            pg.execute("INSERT INTO schema_versions VALUES (99)")
    with pytest.raises(UnavailableError) as caught:
        open_store(where)
    assert caught.value.code == "registry.schema_newer"


def test_a_file_that_others_can_read_or_that_is_a_link_is_refused(tmp_path: Path) -> None:
    open_store(str(tmp_path / "a.sqlite")).close()
    assert (tmp_path / "a.sqlite").stat().st_mode & 0o777 == 0o600
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "a.sqlite")
    (tmp_path / "a.sqlite").chmod(0o644)
    for name, code in [("a", "registry.lax_mode"), ("link", "registry.away")]:
        with pytest.raises(UnavailableError) as caught:
            open_store(str(tmp_path / f"{name}.sqlite"))
        assert caught.value.code == code
