"""`Index`: the SQLite side of the store: who references which chunk, and how much there is.

Everything in it follows from the files and can be rebuilt from them (rebuild.py). Several processes
use it at once; what belongs together happens in one `writing()` transaction, which is also the lock
under which files are published and deleted. Knows tables, not files.
"""

from __future__ import annotations

import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from kvsync.errors import KvsyncError, StoreError, UnavailableError
from kvsync.files import make_private_file, no_room
from kvsync.store.folder import open_error
from kvsync_protocol.digest import Digest

SCHEMA_VERSION: Final = 4
BUSY_TIMEOUT_S: Final = 60.0
"""Longest wait for another process's transaction; a large gc holds one for seconds."""

TABLES: Final = (
    *("leases", "drafts", "listed", "partial_keys", "block_keys"),
    *("artifact_chunks", "artifacts", "chunks", "totals"),
)
SCHEMA: Final = """
CREATE TABLE totals (
  one INTEGER PRIMARY KEY CHECK (one = 1), bytes INTEGER NOT NULL, chunks INTEGER NOT NULL, compared BLOB);
INSERT INTO totals VALUES (1, 0, 0, NULL);
CREATE TABLE chunks (digest BLOB PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER chunk_added AFTER INSERT ON chunks
  BEGIN UPDATE totals SET bytes = bytes + NEW.size, chunks = chunks + 1; END;
CREATE TRIGGER chunk_removed AFTER DELETE ON chunks
  BEGIN UPDATE totals SET bytes = bytes - OLD.size, chunks = chunks - 1; END;
CREATE TABLE artifacts (
  key INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, token_digest BLOB NOT NULL, token_count INTEGER NOT NULL,
  compatibility BLOB NOT NULL, numerics BLOB NOT NULL, bytes INTEGER NOT NULL, meta_bytes INTEGER NOT NULL,
  extent BLOB, to_end INTEGER NOT NULL);
CREATE INDEX artifacts_by_tokens ON artifacts (compatibility, numerics, token_count, token_digest);
CREATE TABLE artifact_chunks (
  artifact INTEGER NOT NULL REFERENCES artifacts (key) ON DELETE CASCADE, digest BLOB NOT NULL,
  PRIMARY KEY (artifact, digest)) WITHOUT ROWID;
CREATE TABLE block_keys (
  key BLOB NOT NULL, artifact INTEGER NOT NULL REFERENCES artifacts (key) ON DELETE CASCADE,
  PRIMARY KEY (key, artifact)) WITHOUT ROWID;
CREATE INDEX block_keys_by_artifact ON block_keys (artifact);
CREATE TABLE partial_keys (
  key BLOB NOT NULL, artifact INTEGER NOT NULL REFERENCES artifacts (key) ON DELETE CASCADE,
  covered INTEGER NOT NULL, PRIMARY KEY (key, artifact)) WITHOUT ROWID;
CREATE INDEX partial_keys_by_artifact ON partial_keys (artifact);
CREATE TABLE listed (
  artifact INTEGER PRIMARY KEY REFERENCES artifacts (key) ON DELETE CASCADE, mark BLOB NOT NULL,
  created REAL NOT NULL, judged BLOB NOT NULL, signers INTEGER NOT NULL);
CREATE TABLE drafts (
  key INTEGER PRIMARY KEY, kind TEXT NOT NULL, name BLOB NOT NULL, expected INTEGER NOT NULL,
  settled INTEGER NOT NULL, UNIQUE (kind, name));
CREATE TABLE leases (
  draft INTEGER NOT NULL REFERENCES drafts (key) ON DELETE CASCADE, digest BLOB NOT NULL, size INTEGER NOT NULL,
  wanted INTEGER NOT NULL, PRIMARY KEY (draft, digest)) WITHOUT ROWID;
"""


class Index:
    """One process's connections to index.sqlite. Thread-safe; not to be used across a fork."""

    def __init__(self, path: Path) -> None:
        """Open the file, made empty (`version()` 0) if absent.

        Raises:
            StoreError: `store.symlink`, `store.index_damaged`, `store.full`, `store.unwritable`.
        """
        self.path = path
        self._write_lock, self._read_lock = threading.Lock(), threading.Lock()
        for name in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            if name.is_symlink():
                raise StoreError("store.symlink", f"{name} is a link", hint="remove it", path=str(name))
        self._inode = _prepare(path)
        self._writer = self._connect()
        try:
            self._reader = self._connect()
        except BaseException:
            self._writer.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        with _named(self.path):
            connection = sqlite3.connect(
                self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            try:
                for pragma in (
                    "journal_mode=WAL",
                    "synchronous=NORMAL",  # a lost tail of commits is made up from the files
                    "foreign_keys=ON",
                    "temp_store=MEMORY",
                    "trusted_schema=OFF",
                    "cell_size_check=ON",
                ):
                    _configure(connection, pragma)
            except BaseException:
                connection.close()
                raise
            return connection

    def check(self) -> None:
        """Raises StoreError `store.index_damaged` unless SQLite finds the whole file sound."""
        with self.reading() as db:
            if [row[0] for row in db.execute("PRAGMA quick_check(1)")] != ["ok"]:
                raise _damaged(self.path)

    def version(self) -> int:
        """The schema version of the file, 0 when it is empty."""
        with self.reading() as db:
            return int(db.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection for single statements; never waits for a writer."""
        with self._read_lock, _named(self.path):
            yield self._reader

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One `BEGIN IMMEDIATE` transaction, committed at the end, rolled back on any exception.

        Not re-entrant: what runs inside takes the connection as an argument.

        Raises:
            UnavailableError: `store.busy` when another process kept its transaction too long.
            StoreError: `store.full`, `store.index_damaged`, `store.index_replaced`, `store.index_failed`.
        """
        with self._transaction() as db:
            yield db
            db.execute("COMMIT")

    @contextmanager
    def rehearsing(self) -> Iterator[sqlite3.Connection]:
        """As `writing`, but rolled back in any case; needs no space."""
        with self._transaction() as db:
            yield db

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._write_lock, _named(self.path):
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                if not self.path.exists() or self.path.stat().st_ino != self._inode:
                    raise StoreError(
                        "store.index_replaced",
                        f"{self.path} was removed or replaced while in use",
                        hint="restart the processes that use this store",
                    )
                yield self._writer
            finally:
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")

    def empty_log(self) -> None:
        """Write the log's pages back and cut it, unless somebody reads now: on a full disk its room is wanted."""
        with self._write_lock, suppress(sqlite3.Error):  # what is not cut now is cut later
            _busy_timeout(self._writer, 0.1)
            self._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            _busy_timeout(self._writer, BUSY_TIMEOUT_S)

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


def _busy_timeout(connection: sqlite3.Connection, seconds: float) -> None:
    connection.execute(f"PRAGMA busy_timeout={int(seconds * 1000)}")


def _configure(connection: sqlite3.Connection, pragma: str) -> None:
    """Run a pragma. Switching to WAL does not wait for others by itself, so it is tried again."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute(f"PRAGMA {pragma}")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def _prepare(path: Path) -> int:
    """Make the file if absent, for this user alone; its inode. SQLite gives its side files the same mode."""
    try:
        status = make_private_file(path)
    except OSError as error:
        raise open_error(error, path) from error
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise StoreError("store.lax_mode", f"{path} is open to other users", hint=f"chmod 600 {path}")
    return status.st_ino


def create_tables(db: sqlite3.Connection) -> None:
    """Drop whatever there is and make empty tables, inside the caller's transaction."""
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()
    for (name,) in sorted(names, key=lambda row: TABLES.index(row[0]) if row[0] in TABLES else -1):
        db.execute(f'DROP TABLE "{name}"')
    for statement in _statements(SCHEMA):
        db.execute(statement)
    db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _statements(script: str) -> Iterator[str]:
    """Split a script; `executescript` would commit the open transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""


def add_chunks(db: sqlite3.Connection, chunks: dict[Digest, int]) -> None:
    """Record chunk files that are there; those already recorded stay as they are."""
    db.executemany("INSERT OR IGNORE INTO chunks VALUES (?, ?)", [(d.raw, size) for d, size in chunks.items()])


Snapshot = dict[str, set[tuple[object, ...]]]
"""Rows by table."""


def snapshot(db: sqlite3.Connection) -> Snapshot:
    """The content of every table without SQLite's own row numbers, to compare two indexes by."""
    return {name: set(db.execute(query).fetchall()) for name, query in _SNAPSHOT.items()}


_SNAPSHOT: Final = {
    "totals": "SELECT bytes, chunks FROM totals",
    "chunks": "SELECT digest, size FROM chunks",
    "artifacts": "SELECT id, token_digest, token_count, compatibility, numerics, bytes, meta_bytes, extent, to_end"
    " FROM artifacts",
    "artifact_chunks": "SELECT id, digest FROM artifact_chunks JOIN artifacts a ON a.key = artifact",
    "block_keys": "SELECT b.key, id FROM block_keys b JOIN artifacts a ON a.key = artifact",
    "partial_keys": "SELECT p.key, id, covered FROM partial_keys p JOIN artifacts a ON a.key = artifact",
    "drafts": "SELECT kind, name, expected, settled FROM drafts",
    "leases": "SELECT kind, name, digest, size FROM leases JOIN drafts d ON d.key = draft",
}


def _damaged(path: Path) -> StoreError:
    return StoreError(
        "store.index_damaged", f"{path} is damaged", hint="stop the processes that use it; the next open rebuilds it"
    )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _translate(error, path) from error


def _translate(error: sqlite3.Error, path: Path) -> KvsyncError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return UnavailableError("store.busy", "another process keeps the index busy", hint="try again later")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _damaged(path)
    if code == sqlite3.SQLITE_FULL or (code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and no_room(path)):
        return StoreError("store.full", f"no space left for {path}", hint="kvsync gc, kvsync rm, or a larger disk")
    return StoreError("store.index_failed", f"{path}: {error}", sqlite=getattr(error, "sqlite_errorname", ""))
