"""`PostgresRegistryStore`: a registry for many replicas over one database, each of them stateless.

Whatever must hold among replicas is held by the database. A provider's changes are serialised by the lock on
its row; a claim that is taken away is locked, and an offer's foreign key locks the claim it needs; refs are
compared in the statement that writes them. What the database breaks off to end a deadlock is done again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import psycopg
from psycopg import errors

from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.reader import PLACE_BYTES
from kvsync_protocol.registry_messages import Matches
from kvsync_protocol.signing import PublicKey
from kvsync_registry import migrations
from kvsync_registry import postgres_sql as texts
from kvsync_registry.errors import FullError, UnavailableError
from kvsync_registry.pool import Pool
from kvsync_registry.sql import (
    LOOKUP,
    REFS_AFTER,
    REFS_NAMED,
    addresses_of,
    addresses_text,
    as_matches,
    place_parameters,
)
from kvsync_registry.store import AttestationRecord, Change, RefOutcome, RefRecord, Standing

T = TypeVar("T")
Connection = psycopg.Connection[tuple[Any, ...]]

TRIES: Final = 8
STATEMENT_MS: Final = 10_000
CONNECT_S: Final = 5
PATIENCE_S: Final = 8.0
SWEPT_AT_ONCE: Final = 20_000
OPTIONS: Final = (
    # Every query here goes from point to point; a plan that reads a whole table is always the wrong one.
    "-c enable_hashjoin=off -c enable_mergejoin=off -c enable_seqscan=off -c jit=off"
    f" -c plan_cache_mode=force_generic_plan -c statement_timeout={STATEMENT_MS}"
    f" -c lock_timeout={STATEMENT_MS} -c idle_in_transaction_session_timeout={3 * STATEMENT_MS}"
)
_MIGRATING: Final = 0x6B767379


def _query(text: str) -> str:
    """`:name` as psycopg writes it. The texts are this package's own."""
    return re.sub(r"(?<!:):(\w+)", r"%(\1)s", text)


_LOOKUP: Final = _query(LOOKUP)
_REFS_NAMED: Final = _query(REFS_NAMED)
_REFS_AFTER: Final = _query(REFS_AFTER)


class PostgresRegistryStore:
    """See RegistryStore. `url` is libpq's: `postgresql://…` or `host=… dbname=…`."""

    def __init__(self, url: str, *, connections: int = 8) -> None:
        """Raises UnavailableError: `registry.away`, `registry.schema_newer`."""
        self._url = url
        self._pool: Pool[Connection] = Pool(self._connect, connections)
        try:
            self._transaction(self._migrate)
        except BaseException:
            self._pool.close()
            raise

    def _connect(self) -> Connection:
        # The first use prepares a statement: there are few, and each is used for ever.
        return psycopg.connect(
            self._url, autocommit=True, prepare_threshold=0, options=OPTIONS, connect_timeout=CONNECT_S
        )

    @staticmethod
    def _migrate(db: Connection) -> None:
        db.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATING])
        db.execute("CREATE TABLE IF NOT EXISTS schema_versions (version integer PRIMARY KEY)")
        [version] = db.execute("SELECT coalesce(max(version), 0) FROM schema_versions").fetchone() or (0,)
        for number, script in migrations.pending("postgres", version):
            for statement in migrations.statements(script):
                db.execute(statement)
            db.execute("INSERT INTO schema_versions VALUES (%s)", [number])

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._pool.connection(lambda db: db.closed or db.broken) as db:
            yield db

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        def attempt(db: Connection) -> T:
            with db.transaction():
                return work(db)

        return self._tried(attempt)

    def _tried(self, work: Callable[[Connection], T]) -> T:
        """Once more after a deadlock, or on a fresh connection after the server went away in between.

        A change that was committed while its answer was lost is tried again too: its statements are then stale.
        """
        deadline = time.monotonic() + PATIENCE_S
        for last in (*([False] * (TRIES - 1)), True):
            try:
                with self._connection() as db:
                    return work(db)
            except (errors.DeadlockDetected, errors.SerializationFailure, errors.ForeignKeyViolation) as error:
                if last:
                    raise UnavailableError("registry.busy", "the registry is busy", hint="try again later") from error
            except (errors.LockNotAvailable, errors.QueryCanceled) as error:
                raise UnavailableError("registry.busy", "the registry is busy", hint="try again later") from error
            except errors.DiskFull as error:
                raise FullError("registry.disk", "the registry's database has no room left") from error
            except (psycopg.OperationalError, psycopg.InterfaceError) as error:
                self._pool.forget()
                if last or time.monotonic() > deadline:
                    raise UnavailableError(
                        "registry.away", "the registry's database cannot be reached", hint="try again later"
                    ) from error
            except psycopg.Error as error:
                raise UnavailableError("registry.away", f"the registry's database failed: {error}") from error
        raise AssertionError("unreachable")

    def change(
        self,
        provider: PublicKey,
        artifacts: Collection[ArtifactId],
        now: int,
        rule: Callable[[Standing], Change | None],
    ) -> None:
        def work(db: Connection) -> None:
            db.execute("INSERT INTO providers (key) VALUES (%s) ON CONFLICT DO NOTHING", [provider.raw])
            query = "SELECT id, epoch, sequence, generation FROM providers WHERE key = %s FOR NO KEY UPDATE"
            number, epoch, sequence, generation = _one(db, query, [provider.raw])
            values = (number, generation, now)
            count, entries = _one(db, texts.STANDING, values)
            rows = db.execute(texts.LIVE, (*values, [one.raw for one in artifacts])).fetchall()
            by_raw = {one.raw: one for one in artifacts}
            live = {by_raw[bytes(artifact)]: held for artifact, held in rows}
            found = rule(Standing(epoch, sequence, live, count, entries))
            if found is None:
                raise psycopg.Rollback  # not even the provider's row is kept
            _apply(db, number, generation + found.renew, found)

        self._transaction(work)

    def lookup(self, places: Sequence[bytes], now: int) -> Matches:
        values = {**place_parameters(places), "asked": len(places[0]) // PLACE_BYTES, "now": now}
        return self._tried(lambda db: as_matches(db.execute(_LOOKUP, values)))

    def put_ref(self, record: RefRecord, most: int) -> RefOutcome:
        def work(db: Connection) -> RefOutcome:
            _lock(db, record.member.raw)
            where = (record.name, record.signer.raw)
            if not db.execute("SELECT 1 FROM refs WHERE name = %s AND signer = %s", where).fetchone():
                [count] = _one(db, "SELECT count(*) FROM refs WHERE member = %s", [record.member.raw])
                if count >= most:
                    return RefOutcome.FULL
            values = (record.sequence, record.artifact.raw, record.expires, record.envelope, record.member.raw)
            kept = db.execute(texts.REF, (*where, *values)).fetchone()
            if kept is None:
                return RefOutcome.ROLLBACK
            db.execute("DELETE FROM ref_readers WHERE ref = %s", kept)
            query = "INSERT INTO ref_readers SELECT place, %s, %s FROM unnest(%s::bytea[]) AS given (place)"
            db.execute(query, (record.name, kept[0], list(record.places)))
            return RefOutcome.KEPT

        return self._transaction(work)

    def refs(self, places: Sequence[bytes], name: str, after: str, now: int, limit: int) -> list[tuple[str, bytes]]:
        values: dict[str, Any] = {**place_parameters(places), "name": name or after, "now": now, "limit": limit}
        rows = self._tried(lambda db: db.execute(_REFS_NAMED if name else _REFS_AFTER, values).fetchall())
        return [(row[0], bytes(row[2])) for row in rows]

    def put_attestation(self, record: AttestationRecord, now: int, most: int, most_each: int) -> bool:
        def work(db: Connection) -> bool:
            artifact, signer, digest = record.artifact.raw, record.signer.raw, record.digest.raw
            _lock(db, artifact)
            total, own = _one(
                db,
                "SELECT count(*), count(*) FILTER (WHERE member = %(member)s) FROM attestations WHERE"
                " artifact = %(artifact)s AND expires > %(now)s AND (signer, digest) <> (%(signer)s, %(digest)s)",
                {"artifact": artifact, "signer": signer, "digest": digest, "now": now, "member": record.member.raw},
            )
            if total >= most or own >= most_each:
                return False
            db.execute(
                "INSERT INTO attestations VALUES (%s, %s, %s, %s, %s, %s) ON CONFLICT (artifact, signer, digest)"
                " DO UPDATE SET envelope = excluded.envelope, expires = excluded.expires, member = excluded.member",
                (artifact, signer, digest, record.envelope, record.expires, record.member.raw),
            )
            return True

        return self._transaction(work)

    def attestations(self, artifact: ArtifactId, now: int, limit: int) -> list[bytes]:
        query = (
            "SELECT envelope FROM attestations WHERE artifact = %s AND expires > %s ORDER BY signer, digest LIMIT %s"
        )
        rows = self._tried(lambda db: db.execute(query, (artifact.raw, now, limit)).fetchall())
        return [bytes(row[0]) for row in rows]

    def contact(self, key: PublicKey, now: int) -> tuple[str, ...]:
        query = "SELECT addresses FROM providers WHERE key = %s AND contact_expires > %s"
        found = self._tried(lambda db: db.execute(query, (key.raw, now)).fetchone())
        return () if found is None else addresses_of(found[0])

    def sweep(self, now: int) -> int:
        removed = 0
        while True:
            part = self._transaction(lambda db: self._swept(db, texts.DEAD, now))
            removed += part
            if part < SWEPT_AT_ONCE:
                break
        while self._transaction(self._unclaimed) == SWEPT_AT_ONCE:
            pass
        self._tried(lambda db: db.execute("DELETE FROM attestations WHERE expires <= %s", [now]))
        return removed

    @staticmethod
    def _swept(db: Connection, query: str, now: int) -> int:
        _plan_freely(db)
        return db.execute(query, (now, SWEPT_AT_ONCE)).rowcount

    @staticmethod
    def _unclaimed(db: Connection) -> int:
        """How many claims without offers were looked at."""
        _plan_freely(db)
        loose = [row[0] for row in db.execute(texts.LOOSE, [SWEPT_AT_ONCE])]
        # Looked at again by a second statement: an offer may have come in before the lock was ours.
        db.execute(texts.UNCLAIM, [loose])
        return len(loose)

    def close(self) -> None:
        self._pool.close()


def _apply(db: Connection, provider: int, generation: int, change: Change) -> None:
    values = (change.epoch, change.sequence, generation, provider)
    db.execute("UPDATE providers SET epoch = %s, sequence = %s, generation = %s WHERE id = %s", values)
    if change.contact is not None:
        contact = (addresses_text(change.contact[0]), change.contact[1], provider)
        db.execute("UPDATE providers SET addresses = %s, contact_expires = %s WHERE id = %s", contact)
    if change.drop:
        gone = [one.raw for one in change.drop]
        db.execute("DELETE FROM offers WHERE provider = %s AND artifact = ANY(%s)", (provider, gone))
    if not change.put:
        return
    rows = change.ordered()
    digests = [digest for digest, *_ in rows]
    claims = [claim for _, _, claim, _ in rows]
    db.execute(
        texts.CLAIM,
        (
            digests,
            [claim.artifact.raw for claim in claims],
            [claim.compatibility.raw for claim in claims],
            [claim.numerics.raw for claim in claims],
            [claim.blocks for claim in claims],
            [claim.size for claim in claims],
            [claim.places for claim in claims],
        ),
    )
    offered = db.execute(texts.OFFER, (provider, generation, digests, [expires for *_, expires in rows])).rowcount
    if offered != len(rows):
        raise errors.SerializationFailure("a claim was swept away in between")


def _one(db: Connection, query: str, values: Any) -> tuple[Any, ...]:
    row = db.execute(query, values).fetchone()
    if row is None:
        raise errors.SerializationFailure("a row went away in between")
    return row


def _lock(db: Connection, name: bytes) -> None:
    """Serialise transactions that count rows of `name` before they add one."""
    db.execute("SELECT pg_advisory_xact_lock(%s)", [int.from_bytes(name[:8], "big", signed=True)])


def _plan_freely(db: Connection) -> None:
    """A sweep reads whole tables, and may take its time."""
    for setting in ("enable_seqscan = on", "enable_hashjoin = on", "enable_mergejoin = on", "statement_timeout = 0"):
        db.execute(f"SET LOCAL {setting}")
