"""Where an entry is found by address or by its words: SQLite with FTS5, made from the list and the entries' files.

A hint only: whoever finds an entry here reads its file and judges its signature. A damaged or missing index is made
again, one that is behind the list catches up before it answers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvsync_protocol.digest import Digest

MAX_WORDS: Final = 64
"""Different words of a problem that are searched for."""
_WORD: Final = re.compile(r"\w+")
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS state (list TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, address TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_address ON entries (address);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (problem, tokenize = 'unicode61 remove_diacritics 0');
"""

Read = Callable[[Digest], "tuple[Digest, str] | None"]
"""An entry's address and its problem's text; None for one that cannot be read."""


def words(text: str) -> list[str]:
    """The different words of a text in their order, in lower case."""
    return list(dict.fromkeys(_WORD.findall(text.lower())))


class EntryIndex:
    """The index of one library. Opens its file anew for each question, so that it may vanish in between."""

    def __init__(self, path: Path, read: Read) -> None:
        self._path = path
        self._read = read

    def find(self, state: Digest, listed: Sequence[Digest], address: Digest) -> list[Digest]:
        """Entries of this address, the latest first. `listed` are all that count, `state` names that list."""
        query = "SELECT digest FROM entries WHERE address = ? ORDER BY number DESC"
        return self._asked(state, listed, query, (address.hex,))

    def search(self, state: Digest, listed: Sequence[Digest], text: str, limit: int) -> list[Digest]:
        """Entries whose problem shares words with `text`, the most telling first."""
        terms = " OR ".join(f'"{word}"' for word in words(text)[:MAX_WORDS])
        query = (
            "SELECT digest FROM words JOIN entries ON number = words.rowid "
            "WHERE words MATCH ? ORDER BY bm25(words), number LIMIT ?"
        )
        return self._asked(state, listed, query, (terms, limit)) if terms else []

    def _asked(self, state: Digest, listed: Sequence[Digest], query: str, values: tuple[object, ...]) -> list[Digest]:
        try:
            return self._ask(state, listed, query, values)
        except sqlite3.DatabaseError:
            if not self._path.parent.is_dir():
                return []  # the library went away meanwhile
            for end in ("", "-journal"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            return self._ask(state, listed, query, values)

    def _ask(self, state: Digest, listed: Sequence[Digest], query: str, values: tuple[object, ...]) -> list[Digest]:
        with self._open() as db:
            self._catch_up(db, state, listed)
            return [Digest.parse(row[0]) for row in db.execute(query, values)]

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")
            yield db
        finally:
            db.close()

    def _catch_up(self, db: sqlite3.Connection, state: Digest, listed: Sequence[Digest]) -> None:
        """Add what the list has more, drop what it has no more."""
        known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone()
        if known and db.execute("SELECT list FROM state").fetchone() == (state.hex,):
            return
        db.executescript(_TABLES)
        db.execute("BEGIN IMMEDIATE")
        held = dict(db.execute("SELECT digest, number FROM entries"))
        wanted = {digest.hex for digest in listed}
        for name in held.keys() - wanted:
            db.execute("DELETE FROM entries WHERE number = ?", (held[name],))
            db.execute("DELETE FROM words WHERE rowid = ?", (held[name],))
        for digest in listed:
            found = None if digest.hex in held else self._read(digest)
            if found is not None:
                new = db.execute("INSERT INTO entries (digest, address) VALUES (?, ?)", (digest.hex, found[0].hex))
                db.execute("INSERT INTO words (rowid, problem) VALUES (?, ?)", (new.lastrowid, found[1]))
        db.execute("DELETE FROM state")
        db.execute("INSERT INTO state VALUES (?)", (state.hex,))
        db.execute("COMMIT")
