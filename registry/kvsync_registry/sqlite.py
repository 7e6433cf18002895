"""`SqliteRegistryStore`: a registry in one file, for the daemon that embeds it. Several processes may share it.

WAL: lookups never wait for a change. A change is one `BEGIN IMMEDIATE` transaction, on disk before it counts,
so that no power cut takes back the sequence number of a ref.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.reader import PLACE_BYTES
from kvsync_protocol.registry_messages import Matches
from kvsync_protocol.signing import PublicKey
from kvsync_registry import migrations
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
from kvsync_registry.store import AttestationRecord, Change, RefOutcome, RefRecord, Standing, split_places

BUSY_S: Final = 10.0
SWEPT_AT_ONCE: Final = 2_000
"""Rows removed in one transaction: announcers wait for it."""
PRAGMAS: Final = (
    "journal_mode=WAL",
    "synchronous=FULL",
    "foreign_keys=ON",
    "temp_store=MEMORY",
    "trusted_schema=OFF",
    "cache_size=-65536",
    "mmap_size=1073741824",
)


class SqliteRegistryStore:
    """See RegistryStore. Not to be used across a fork."""

    def __init__(self, path: Path, *, readers: int = 8) -> None:
        """Open the file, made for this user alone when absent.

        Raises:
            UnavailableError: `registry.away`, `registry.lax_mode`, `registry.schema_newer`.
            FullError: `registry.disk`.
        """
        self._path = path
        self._pool = Pool(self._connect, readers)
        self._one_writer = threading.Lock()
        with _named(path):
            _make(path)
        try:
            self._migrate()
        except BaseException:
            self._pool.close()
            raise

    def _migrate(self) -> None:
        with self._writing() as db:
            for number, script in migrations.pending("sqlite", db.execute("PRAGMA user_version").fetchone()[0]):
                for statement in migrations.statements(script):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {number}")

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            for pragma in PRAGMAS:
                db.execute(f"PRAGMA {pragma}")
        except BaseException:
            db.close()
            raise
        return db

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with _named(self._path), self._pool.connection(lambda _: False) as db:
            yield db

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._one_writer, self._reading() as db:
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                if db.in_transaction:
                    db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def change(
        self,
        provider: PublicKey,
        artifacts: Collection[ArtifactId],
        now: int,
        rule: Callable[[Standing], Change | None],
    ) -> None:
        with self._writing() as db:
            db.execute("INSERT INTO providers (key) VALUES (?) ON CONFLICT DO NOTHING", [provider.raw])
            query = "SELECT id, epoch, sequence, generation FROM providers WHERE key = ?"
            number, epoch, sequence, generation = db.execute(query, [provider.raw]).fetchone()
            found = rule(_standing(db, number, generation, epoch, sequence, artifacts, now))
            if found is None:
                db.execute("ROLLBACK")  # not even the provider's row is kept
                return
            generation += found.renew
            values = (found.epoch, found.sequence, generation, number)
            db.execute("UPDATE providers SET epoch = ?, sequence = ?, generation = ? WHERE id = ?", values)
            if found.contact is not None:
                contact = (addresses_text(found.contact[0]), found.contact[1], number)
                db.execute("UPDATE providers SET addresses = ?, contact_expires = ? WHERE id = ?", contact)
            db.executemany(
                "DELETE FROM offers WHERE provider = ? AND artifact = ?", [(number, one.raw) for one in found.drop]
            )
            _put(db, number, generation, found)

    def lookup(self, places: Sequence[bytes], now: int) -> Matches:
        asked = len(places[0]) // PLACE_BYTES
        with self._reading() as db:
            return as_matches(db.execute(LOOKUP, {**place_parameters(places), "asked": asked, "now": now}))

    def put_ref(self, record: RefRecord, most: int) -> RefOutcome:
        with self._writing() as db:
            where = (record.name, record.signer.raw)
            query = "SELECT id, sequence, artifact FROM refs WHERE name = ? AND signer = ?"
            before = db.execute(query, where).fetchone()
            if before is None:
                count = db.execute("SELECT count(*) FROM refs WHERE member = ?", [record.member.raw]).fetchone()[0]
                if count >= most:
                    return RefOutcome.FULL
            elif before[1] > record.sequence or (before[1] == record.sequence and before[2] != record.artifact.raw):
                return RefOutcome.ROLLBACK
            values = (record.sequence, record.artifact.raw, record.expires, record.envelope, record.member.raw)
            number = db.execute(
                "INSERT INTO refs (name, signer, sequence, artifact, expires, envelope, member)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (name, signer) DO UPDATE SET sequence = excluded.sequence,"
                " artifact = excluded.artifact, expires = excluded.expires, envelope = excluded.envelope,"
                " member = excluded.member RETURNING id",
                (*where, *values),
            ).fetchone()[0]
            db.execute("DELETE FROM ref_readers WHERE ref = ?", [number])
            rows = [(place, record.name, number) for place in record.places]
            db.executemany("INSERT INTO ref_readers VALUES (?, ?, ?)", rows)
            return RefOutcome.KEPT

    def refs(self, places: Sequence[bytes], name: str, after: str, now: int, limit: int) -> list[tuple[str, bytes]]:
        with self._reading() as db:
            values: dict[str, Any] = {**place_parameters(places), "name": name or after, "now": now, "limit": limit}
            rows = db.execute(REFS_NAMED if name else REFS_AFTER, values)
            return [(row[0], row[2]) for row in rows]

    def put_attestation(self, record: AttestationRecord, now: int, most: int, most_each: int) -> bool:
        with self._writing() as db:
            artifact, signer = record.artifact.raw, record.signer.raw
            total, own = db.execute(
                "SELECT count(*), coalesce(sum(member = :member), 0) FROM attestations"
                " WHERE artifact = :artifact AND expires > :now AND (signer, digest) <> (:signer, :digest)",
                {
                    "artifact": artifact,
                    "signer": signer,
                    "digest": record.digest.raw,
                    "now": now,
                    "member": record.member.raw,
                },
            ).fetchone()
            if total >= most or own >= most_each:
                return False
            values = (artifact, signer, record.digest.raw, record.envelope, record.expires, record.member.raw)
            db.execute("INSERT OR REPLACE INTO attestations VALUES (?, ?, ?, ?, ?, ?)", values)
            return True

    def attestations(self, artifact: ArtifactId, now: int, limit: int) -> list[bytes]:
        query = "SELECT envelope FROM attestations WHERE artifact = ? AND expires > ? ORDER BY signer, digest LIMIT ?"
        with self._reading() as db:
            return [row[0] for row in db.execute(query, (artifact.raw, now, limit))]

    def contact(self, key: PublicKey, now: int) -> tuple[str, ...]:
        query = "SELECT addresses FROM providers WHERE key = ? AND contact_expires > ?"
        with self._reading() as db:
            found = db.execute(query, (key.raw, now)).fetchone()
        return () if found is None else addresses_of(found[0])

    def sweep(self, now: int) -> int:
        with self._reading() as db:
            dead = db.execute(
                "SELECT o.provider, o.artifact FROM offers o JOIN providers p ON p.id = o.provider"
                " WHERE o.expires <= ? OR o.generation <> p.generation",
                [now],
            ).fetchall()
        removed = 0
        for part in _parts(dead):
            with self._writing() as db:
                removed += db.executemany(
                    "DELETE FROM offers WHERE provider = ? AND artifact = ? AND (expires <= ? OR generation <>"
                    " (SELECT generation FROM providers WHERE id = provider))",
                    [(*row, now) for row in part],
                ).rowcount
        with self._reading() as db:
            loose = db.execute(
                "SELECT id FROM claims c WHERE NOT EXISTS (SELECT 1 FROM offers o WHERE o.claim = c.id)"
            ).fetchall()
        for part in _parts(loose):
            with self._writing() as db:
                for (number,) in part:
                    gone = db.execute(
                        "DELETE FROM claims WHERE id = ? AND NOT EXISTS (SELECT 1 FROM offers WHERE claim = ?)"
                        " RETURNING places",
                        (number, number),
                    ).fetchall()
                    rows = [(place, number) for (places,) in gone for place in split_places(places)]
                    db.executemany("DELETE FROM entries WHERE place = ? AND claim = ?", rows)
        with self._writing() as db:
            db.execute("DELETE FROM attestations WHERE expires <= ?", [now])
        return removed

    def close(self) -> None:
        self._pool.close()


def _standing(
    db: sqlite3.Connection,
    provider: int,
    generation: int,
    epoch: int,
    sequence: int,
    artifacts: Collection[ArtifactId],
    now: int,
) -> Standing:
    living = "FROM offers WHERE provider = ? AND generation = ? AND expires > ?"
    values = (provider, generation, now)
    count, entries = db.execute(f"SELECT count(*), coalesce(sum(entries), 0) {living}", values).fetchone()
    live = {}
    for artifact in artifacts:
        row = db.execute(f"SELECT entries {living} AND artifact = ?", (*values, artifact.raw)).fetchone()
        if row is not None:
            live[artifact] = row[0]
    return Standing(epoch, sequence, live, count, entries)


def _put(db: sqlite3.Connection, provider: int, generation: int, change: Change) -> None:
    for digest, artifact, claim, expires in change.ordered():
        found = db.execute("SELECT id FROM claims WHERE digest = ?", [digest]).fetchone()
        if found is None:
            names = (claim.artifact.raw, claim.compatibility.raw, claim.numerics.raw)
            found = db.execute(
                "INSERT INTO claims (digest, artifact, compatibility, numerics, blocks, bytes, places)"
                " VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
                (digest, *names, claim.blocks, claim.size, claim.places),
            ).fetchone()
            rows = [(place, found[0]) for place in split_places(claim.places)]
            db.executemany("INSERT INTO entries VALUES (?, ?)", rows)
        db.execute(
            "INSERT OR REPLACE INTO offers VALUES (?, ?, ?, ?, ?, ?)",
            (provider, artifact.raw, found[0], generation, expires, claim.entries),
        )


def _parts(rows: list[Any]) -> Iterator[list[Any]]:
    return (rows[at : at + SWEPT_AT_ONCE] for at in range(0, len(rows), SWEPT_AT_ONCE))


def _make(path: Path) -> None:
    """The file, if absent, for this user alone; SQLite gives its side files the same mode.

    It is not opened: closing a descriptor of it would drop the locks of every connection that this process has.
    """
    with suppress(FileExistsError):
        os.mknod(path, stat.S_IFREG | 0o600)
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        raise UnavailableError("registry.away", f"{path} cannot be used: it is a link, or no file")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise UnavailableError("registry.lax_mode", f"{path} is open to other users", hint=f"chmod 600 {path}")


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """SQLite's errors under the registry's codes."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL or (
            code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and _is_full(path)
        ):
            raise FullError("registry.disk", f"no space left for {path}") from error
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise UnavailableError("registry.busy", "the registry is busy", hint="try again later") from error
        raise UnavailableError("registry.away", f"{path} cannot be used: {error}") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FullError("registry.disk", f"no space left for {path}") from error
        raise UnavailableError("registry.away", f"{path} cannot be used: {error.strerror}") from error


def _is_full(path: Path) -> bool:
    """In bytes or in files: what SQLite then reports is a plain I/O error."""
    status = os.statvfs(path.parent)
    return status.f_bavail * status.f_frsize < 1 << 20 or (status.f_files > 0 and status.f_favail < 4)
