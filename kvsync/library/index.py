"""Where entries are found by address or words, passages by words: SQLite with FTS5, made from list and files.

A hint only: whoever finds an entry here reads its file and judges its signature. A damaged or missing index is made
again, one that is behind the list catches up before it answers.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from kvsync_protocol.digest import Digest

T = TypeVar("T")
MAX_WORDS: Final = 64
"""Different words of a problem that are searched for."""
_WORD: Final = re.compile(r"\w+")
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS state (list TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS entries (
    number INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, address TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS by_address ON entries (address);
CREATE VIRTUAL TABLE IF NOT EXISTS words USING fts5 (problem, tokenize = 'unicode61 remove_diacritics 0');
CREATE VIRTUAL TABLE IF NOT EXISTS passages USING fts5 (body, tokenize = 'porter unicode61 remove_diacritics 2');
"""
_NOWHERE: Final = ""
"""The address of a passage, which answers no problem."""

Read = Callable[[Digest], "tuple[Digest | None, str] | None"]
"""An entry's address and its problem's text, or None and a passage's text; None for what cannot be read."""


Listed = Callable[[], Sequence[Digest]]
"""All that stand in the list; only asked for by an index that is behind it."""


def sequence(text: str) -> list[str]:
    """The words of a text in their order, in lower case."""
    return _WORD.findall(text.lower())


def words(text: str) -> list[str]:
    """The different words of a text in their order, in lower case."""
    return list(dict.fromkeys(sequence(text)))


class EntryIndex:
    """The index of one library. Opens its file anew for each question, so that it may vanish in between."""

    def __init__(self, path: Path, read: Read) -> None:
        self._path = path
        self._read = read

    def find(self, state: Digest, listed: Listed, address: Digest) -> list[Digest]:
        """Entries of this address, the latest first. `state` names the list that `listed` tells."""
        query = "SELECT digest FROM entries WHERE address = ? ORDER BY number DESC"
        return self._asked(state, listed, query, (address.hex,))

    def search(self, state: Digest, listed: Listed, text: str, limit: int) -> list[Digest]:
        """Entries whose problem shares words with `text`, the most telling first."""
        query = (
            "SELECT digest FROM words JOIN entries ON number = words.rowid "
            "WHERE words MATCH ? ORDER BY bm25(words), number LIMIT ?"
        )
        found = words(text)[:MAX_WORDS]
        return self._asked(state, listed, query, (_any_of(found), limit)) if found else []

    def route(self, state: Digest, listed: Listed, chosen: Sequence[str], limit: int) -> list[tuple[Digest, float]]:
        """Passages with some of these words and phrases, and their BM25 scores, the highest first.

        Those of more than half of the passages score nothing, so they only count where no others are known here.
        """

        def ask(db: sqlite3.Connection) -> list[tuple[Digest, float]]:
            (half,) = db.execute("SELECT count(*) / 2.0 FROM entries WHERE address = ?", (_NOWHERE,)).fetchone()
            count = "SELECT count(*) FROM passages WHERE passages MATCH ?"
            known = [
                (word, found) for word in chosen if (found := db.execute(count, (_any_of([word]),)).fetchone()[0])
            ]
            telling = [word for word, found in known if found <= half] or [word for word, _ in known]
            if not telling:
                return []
            query = (
                "SELECT digest, -bm25(passages) FROM passages JOIN entries ON number = passages.rowid "
                "WHERE passages MATCH ? ORDER BY bm25(passages), number LIMIT ?"
            )
            rows = db.execute(query, (_any_of(telling), limit))
            return [(Digest.parse(digest), score) for digest, score in rows]

        return self._in_step(state, listed, ask) if chosen else []

    def refresh(self, state: Digest, listed: Listed) -> None:
        """Catch up with the list now, so that the next question need not."""
        self._in_step(state, listed, lambda db: [])

    def _asked(self, state: Digest, listed: Listed, query: str, values: tuple[object, ...]) -> list[Digest]:
        return self._in_step(state, listed, lambda db: [Digest.parse(row[0]) for row in db.execute(query, values)])

    def _in_step(self, state: Digest, listed: Listed, ask: Callable[[sqlite3.Connection], list[T]]) -> list[T]:
        """What `ask` finds in an index that follows the list."""
        try:
            return self._try(state, listed, ask)
        except sqlite3.DatabaseError:
            if not self._path.parent.is_dir():
                return []  # the library went away meanwhile
            for end in ("", "-journal"):
                self._path.with_name(self._path.name + end).unlink(missing_ok=True)
            try:
                return self._try(state, listed, ask)
            except sqlite3.OperationalError:  # no room for a file: answer from memory, and make none
                return self._try(state, listed, ask, ":memory:")

    def _try(
        self, state: Digest, listed: Listed, ask: Callable[[sqlite3.Connection], list[T]], path: str = ""
    ) -> list[T]:
        with self._open(path or self._path) as db:
            self._catch_up(db, state, listed)
            return ask(db)

    @contextmanager
    def _open(self, path: Path | str) -> Iterator[sqlite3.Connection]:
        db = sqlite3.connect(path, timeout=30, isolation_level=None)
        try:
            db.execute("PRAGMA synchronous = OFF")
            yield db
        finally:
            db.close()

    def _catch_up(self, db: sqlite3.Connection, state: Digest, listed: Listed) -> None:
        """Add what the list has more, drop what it has no more."""
        known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'").fetchone()
        if known and db.execute("SELECT list FROM state").fetchone() == (state.hex,):
            return
        db.executescript(_TABLES)
        db.execute("BEGIN IMMEDIATE")
        held = dict(db.execute("SELECT digest, number FROM entries"))
        every = listed()
        wanted = {digest.hex for digest in every}
        for name in held.keys() - wanted:
            db.execute("DELETE FROM entries WHERE number = ?", (held[name],))
            db.execute("DELETE FROM words WHERE rowid = ?", (held[name],))
            db.execute("DELETE FROM passages WHERE rowid = ?", (held[name],))
        for digest in every:
            found = None if digest.hex in held else self._read(digest)
            if found is not None:
                address, text = found
                values = (digest.hex, _NOWHERE if address is None else address.hex)
                new = db.execute("INSERT INTO entries (digest, address) VALUES (?, ?)", values)
                table = "passages (rowid, body)" if address is None else "words (rowid, problem)"
                db.execute(f"INSERT INTO {table} VALUES (?, ?)", (new.lastrowid, text))  # noqa: S608  ours
        db.execute("DELETE FROM state")
        db.execute("INSERT INTO state VALUES (?)", (state.hex,))
        db.execute("COMMIT")


def _any_of(chosen: Sequence[str]) -> str:
    """An FTS5 query. Words are letters and digits and stand in quotes, so that they are nothing but text."""
    return " OR ".join(f'"{word}"' for word in chosen)
