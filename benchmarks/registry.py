"""How fast a registry answers and hears, and how both grow with what it knows.

    python -m benchmarks.registry [--json] [--backend sqlite|postgres] [--artifacts 1000000] [--grow 1,10,100]

Artifacts have 10 full blocks, the first two of which a hundred of them share. A lookup asks as a member of a tenant
with 64 keys: the first blocks of some artifact and then a prompt's own, or nothing known in one of eight. Eight
client processes ask at once, each with the whole service in it and a connection of its own, as eight replicas
would: at --rate lookups a second each, for the time a lookup takes, and without a pause, for how many there can be.
Announcements are measured as a server hears them: bytes of a request in, signatures checked,
committed. Filling goes past the signatures, straight into the store.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks import postgres
from kvsync_protocol.announcement import Announcement, Moment
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey, sha256
from kvsync_protocol.registry_messages import Envelopes, PrefixQuery
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_registry.member import Member
from kvsync_registry.rules import claim_of
from kvsync_registry.service import Registry
from kvsync_registry.store import Change, RegistryStore, Standing

BLOCKS: Final = 10
SHARED: Final = 2
SHARE: Final = 100
ASKED: Final = 64
CLIENTS: Final = 8
BATCH: Final = 1_000
HEARD: Final = 2_000
REQUEST: Final = 250
HOSTS: Final = 100
P99_BAR_MS: Final = 10.0
ANNOUNCE_BAR: Final = 1_000.0
FINGERPRINT: Final = sha256(b"fingerprint")
TTL_S: Final = 24 * 3600
LOADED_EPOCH: Final = 1
SETTINGS: Final = {
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
    "autovacuum_vacuum_insert_scale_factor": "0.5",
}


def host(number: int) -> SigningKey:
    return SigningKey(hashlib.sha256(b"host %d" % number).digest())


def block(name: str) -> PrefixKey:
    return PrefixKey(Digest(hashlib.sha256(name.encode()).digest()))


def keys_of(number: int) -> tuple[PrefixKey, ...]:
    shared = [block(f"s{number // SHARE}.{index}") for index in range(SHARED)]
    return (*shared, *(block(f"b{number}.{index}") for index in range(SHARED, BLOCKS)))


def announcement(number: int, at: Moment) -> Announcement:
    artifact = ArtifactId(sha256(b"artifact %d" % number))
    return Announcement(at, artifact, FINGERPRINT, FINGERPRINT, keys_of(number), 10**8, ("members",), TTL_S)


class Everybody:
    """Every key is a member of one tenant."""

    def find(self, key: PublicKey) -> Member:
        return Member(key, "tenant", publish=True)


def open_store(where: str) -> RegistryStore:
    if where.endswith(".sqlite"):
        from kvsync_registry.sqlite import SqliteRegistryStore

        return SqliteRegistryStore(Path(where))
    from kvsync_registry.postgres import PostgresRegistryStore

    return PostgresRegistryStore(where)


def fill(store: RegistryStore, first: int, last: int) -> float:
    """Artifacts `first` to `last` (not included), spread over the hosts by batches; artifacts per second."""
    began = time.perf_counter()
    now = int(time.time())
    for batch, start in enumerate(range(first, last, BATCH)):
        numbers = range(start, min(start + BATCH, last))
        put = {}
        for number in numbers:
            claim = claim_of(announcement(number, Moment(1, 1)))
            put[claim.artifact] = (claim, now + TTL_S)

        def rule(standing: Standing, put: dict[Any, Any] = put) -> Change:
            return Change(LOADED_EPOCH, standing.sequence + 1, put=put)

        store.change(host((first // BATCH + batch) % HOSTS).public, [], now, rule)
    return (last - first) / max(time.perf_counter() - began, 1e-9)


def announce(store: RegistryStore, first: int, count: int) -> dict[str, float]:
    """New announcements of one host, as requests of REQUEST statements: how many a second, and how long each took."""
    registry = Registry(store, Everybody())
    newcomer = host(10**6 + first)
    bodies = []
    for start in range(0, count, REQUEST):
        said = [announcement(10**9 + first + n, Moment(1, n + 1)) for n in range(start, min(start + REQUEST, count))]
        bodies.append(Envelopes(tuple(one.seal(newcomer) for one in said)).encode())
    took = []
    cpu = time.process_time()
    for body in bodies:
        began = time.perf_counter()
        outcomes = registry.declare(newcomer.public, Envelopes.parse(body).envelopes).outcomes
        took.append(time.perf_counter() - began)
        assert set(outcomes) == {"ok"}
    return {"per_s": count / sum(took), "request_ms": 1000 * max(took), "cpu_s": time.process_time() - cpu}


def client(where: str, seed: int, known: int, seconds: float, rate: float) -> dict[str, Any]:
    """Ask for so long, `rate` times a second or without a pause (0); milliseconds of every lookup after a second."""
    registry = Registry(open_store(where), Everybody())
    me = host(10**7 + seed).public
    rng = random.Random(seed)
    took: list[float] = []
    asked, cpu = 0, time.process_time()
    warm = time.perf_counter() + 1.0
    end = warm + seconds
    while (began := time.perf_counter()) < end:
        number = rng.randrange(known)
        have = 0 if rng.random() < 0.125 else rng.randint(1, BLOCKS)
        keys = keys_of(number)[:have]
        query = PrefixQuery((*keys, *(block(f"{seed}.{asked}.{n}") for n in range(ASKED - have))))
        if rate:
            time.sleep(rng.uniform(0.5, 1.5) / rate)
        began = time.perf_counter()
        found = registry.lookup(me, query)
        ended = time.perf_counter()
        assert found.shared == have
        asked += 1
        if began >= warm:
            took.append(1000 * (ended - began))
    registry.store.close()
    return {"ms": took, "all": asked, "cpu_s": time.process_time() - cpu}


def server_cpu_s(server: int | None) -> float:
    """CPU seconds so far of a database server with all its processes; 0 without one."""
    if server is None:
        return 0.0
    process, total = psutil.Process(server), 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
            if one == process:
                total += times.children_user + times.children_system
    return total


@contextmanager
def undisturbed(server: int | None, wanted: bool) -> Iterator[None]:
    """Let this process and a database server, with all they start meanwhile, run before other work on the machine."""
    processes = [psutil.Process()] if wanted else []
    if processes and server is not None:
        processes += [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
    for process in processes:
        os.sched_setscheduler(process.pid, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        for process in processes:
            os.sched_setscheduler(process.pid, os.SCHED_OTHER, os.sched_param(0))


def ask(where: str, known: int, seconds: float, rate: float) -> dict[str, float]:
    """CLIENTS processes at once."""
    command = [sys.executable, "-m", "benchmarks.registry", "--client", where]
    running = [
        subprocess.Popen([*command, str(seed), str(known), str(seconds), str(rate)], stdout=subprocess.PIPE)
        for seed in range(CLIENTS)
    ]
    told = [json.loads(process.communicate()[0]) for process in running]
    assert all(process.returncode == 0 for process in running)
    took = sorted(value for one in told for value in one["ms"])
    return {
        "with_warm_up": sum(one["all"] for one in told),
        "cpu_s": sum(one["cpu_s"] for one in told),
        "lookups_per_s": len(took) / seconds,
        "p50_ms": took[len(took) // 2],
        "p99_ms": took[len(took) * 99 // 100],
        "most_ms": took[-1],
    }


@contextmanager
def place(backend: str, parent: Path) -> Iterator[tuple[str, Callable[[], int], int | None]]:
    """Where to find an empty store, a function for its size in bytes, and the server's process."""
    if backend == "postgres":
        with postgres.cluster(parent, SETTINGS) as cluster:
            yield cluster.create("registry"), lambda: cluster.bytes("registry"), cluster.process.pid
    else:
        folder = Path(tempfile.mkdtemp(prefix="kvsync-registry-", dir=parent))
        try:
            path = folder / "registry.sqlite"
            yield str(path), lambda: sum(file.stat().st_size for file in folder.iterdir()), None
        finally:
            shutil.rmtree(folder)


def measure(options: argparse.Namespace, percents: list[float]) -> Iterator[Any]:
    """One row for each size, growing the same store."""
    with place(options.backend, options.directory) as (where, size, server):
        store = open_store(where)
        known = 0
        for percent in percents:
            target = int(options.artifacts * percent / 100)
            filled = fill(store, known, target)
            known = target
            before = server_cpu_s(server)
            with undisturbed(server, options.undisturbed):
                heard = announce(store, known, HEARD)
            heard_cpu = (server_cpu_s(server) - before + heard["cpu_s"]) / HEARD
            if options.backend == "postgres":
                settle(where)
            before = server_cpu_s(server)
            most = ask(where, known, options.seconds, 0)
            asked_cpu = (server_cpu_s(server) - before + most["cpu_s"]) / most["with_warm_up"]
            with undisturbed(server, options.undisturbed):
                asked = ask(where, known, options.seconds, options.rate)
            asked["most_lookups_per_s"] = most["lookups_per_s"]
            cpu = {"lookup_cpu_ms": 1000 * asked_cpu, "announcement_cpu_ms": 1000 * heard_cpu}
            row = {
                "artifacts": known,
                "keys": known * BLOCKS,
                "fill_per_s": filled,
                "bytes": size(),
                "load": os.getloadavg()[0],
            }
            yield {
                **row,
                "announced_per_s": heard["per_s"],
                "slowest_request_ms": heard["request_ms"],
                **asked,
                **cpu,
            }
        store.close()


def settle(where: str) -> None:
    """What autovacuum does in quiet times."""
    import psycopg

    with psycopg.connect(where, autocommit=True) as db:
        db.execute("VACUUM ANALYZE")


def show(row: dict[str, float]) -> None:
    print(
        f"{row['artifacts']:>9,.0f} artifacts {row['keys']:>10,.0f} keys {row['bytes'] / 2**20:>7,.0f} MiB"
        f"   lookup p50 {row['p50_ms']:6.2f} p99 {row['p99_ms']:6.2f} most {row['most_ms']:7.1f} ms"
        f" at {row['lookups_per_s']:>4,.0f}/s, can {row['most_lookups_per_s']:>6,.0f}/s"
        f"   announced {row['announced_per_s']:>6,.0f}/s"
        f" (cpu {row['lookup_cpu_ms']:.2f} and {row['announcement_cpu_ms']:.2f} ms, load {row['load']:.1f})"
        f" (a request of {REQUEST}: at most {row['slowest_request_ms']:.0f} ms)   filled {row['fill_per_s']:,.0f}/s",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--backend", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--artifacts", type=int, default=1_000_000)
    parser.add_argument("--grow", default="1,10,100", help="percentages of --artifacts, ascending")
    parser.add_argument("--seconds", type=float, default=10.0, help="of asking, at each size")
    parser.add_argument("--rate", type=float, default=25.0, help="lookups a second of each client")
    parser.add_argument("--undisturbed", action="store_true", help="time at realtime priority (root)")
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108  in memory
    parser.add_argument("--client", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        where, seed, known, seconds, rate = options.client
        print(json.dumps(client(where, int(seed), int(known), float(seconds), float(rate))))
        return 0
    percents = [float(part) for part in options.grow.split(",")]
    rows = []
    for row in measure(options, percents):
        rows.append(row)
        if not options.json:
            show(row)
    last = rows[-1]
    held = {
        f"p99 < {P99_BAR_MS} ms": last["p99_ms"] < P99_BAR_MS,
        f"announcements >= {ANNOUNCE_BAR}/s": last["announced_per_s"] >= ANNOUNCE_BAR,
    }
    if options.json:
        print(
            json.dumps({"backend": options.backend, "clients": CLIENTS, "asked": ASKED, "rows": rows, "held": held})
        )
    else:
        print(f"held: {held}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
