"""Leases: which chunks an unfinished draft needs kept, and how much room it may still take.

A draft's rows are written before its first byte lands. They count as reserved space while its OS lock
is held; once nobody holds it, what landed is counted as it is (`settle`) and the rest is let go.

    live draft     leased chunks without a file yet   = reserved, as far as the draft wants them
    dead draft     leased chunks without a file yet   = nothing; the leases protect those with one

Knows the index and the draft folders' locks, not what is transferred.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from kvsync.errors import StoreError, UnavailableError
from kvsync.store.chunks import ChunkFiles
from kvsync.store.index import add_chunks
from kvsync_protocol.digest import Digest
from kvsync_protocol.leaves import Leaf

_log = logging.getLogger(__name__)
PARTIAL: Final = "partial"
COMPUTE: Final = "compute"
KINDS: Final = (PARTIAL, COMPUTE)


def register(
    db: sqlite3.Connection,
    kind: str,
    name: Digest,
    leaves: Iterable[Leaf],
    expected: int = 0,
    wanted: Container[Digest] | None = None,
) -> None:
    """Record an opened draft. `expected` is a lower bound of all its bytes when `leaves` are not all.

    Of `leaves` those in `wanted` (None: all) are reserved; the others are kept where they are.
    """
    db.execute(
        "INSERT INTO drafts (kind, name, expected, settled) VALUES (?, ?, ?, 0)"
        " ON CONFLICT DO UPDATE SET expected = excluded.expected, settled = 0",
        (kind, name.raw, expected),
    )
    lease(db, kind, name, leaves, wanted)


def is_registered(db: sqlite3.Connection, kind: str, name: Digest) -> bool:
    return db.execute("SELECT 1 FROM drafts WHERE kind = ? AND name = ?", (kind, name.raw)).fetchone() is not None


def lease(
    db: sqlite3.Connection,
    kind: str,
    name: Digest,
    leaves: Iterable[Leaf],
    wanted: Container[Digest] | None = None,
) -> None:
    """Protect chunks, present or to come, for a registered draft."""
    (key,) = db.execute("SELECT key FROM drafts WHERE kind = ? AND name = ?", (kind, name.raw)).fetchone()
    db.executemany(
        "INSERT INTO leases VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET wanted = excluded.wanted",
        [(key, leaf.digest.raw, leaf.size, wanted is None or leaf.digest in wanted) for leaf in leaves],
    )


def narrow(db: sqlite3.Connection, kind: str, name: Digest, leaves: Iterable[Leaf]) -> None:
    """Let go of every lease of a draft but these."""
    db.execute(
        "DELETE FROM leases WHERE draft = (SELECT key FROM drafts WHERE kind = ? AND name = ?)", (kind, name.raw)
    )
    lease(db, kind, name, leaves)


def release(db: sqlite3.Connection, kind: str, name: Digest) -> None:
    """Forget a draft and its leases."""
    db.execute("DELETE FROM drafts WHERE kind = ? AND name = ?", (kind, name.raw))


def settle(db: sqlite3.Connection, chunks: ChunkFiles, kind: str, name: Digest) -> None:
    """Count those leased chunks of a draft that have landed but were not recorded."""
    unrecorded = db.execute(
        "SELECT digest FROM leases WHERE draft = (SELECT key FROM drafts WHERE kind = ? AND name = ?)"
        " AND digest NOT IN (SELECT digest FROM chunks)",
        (kind, name.raw),
    ).fetchall()
    add_chunks(db, chunks.sizes(Digest(raw) for (raw,) in unrecorded))


def close(
    db: sqlite3.Connection, chunks: ChunkFiles, kind: str, name: Digest, leaves: Iterable[Leaf] | None = None
) -> None:
    """The draft is left: count what landed, reserve nothing any more, keep the leases of `leaves` (None: all)."""
    settle(db, chunks, kind, name)
    if leaves is not None:
        narrow(db, kind, name, leaves)
    db.execute("UPDATE drafts SET settled = 1, expected = 0 WHERE kind = ? AND name = ?", (kind, name.raw))


def any_unsettled(db: sqlite3.Connection) -> bool:
    """True while drafts are open, or were when their process ended."""
    return db.execute("SELECT 1 FROM drafts WHERE settled = 0 LIMIT 1").fetchone() is not None


def outstanding(db: sqlite3.Connection, kind: str, name: Digest) -> int:
    """Bytes that one draft may still write."""
    key, expected = db.execute(
        "SELECT key, expected FROM drafts WHERE kind = ? AND name = ?", (kind, name.raw)
    ).fetchone()
    leased, missing = db.execute(
        "SELECT coalesce(sum(size), 0),"
        " coalesce(sum(size) FILTER (WHERE digest NOT IN (SELECT digest FROM chunks)), 0)"
        " FROM leases WHERE draft = ? AND wanted",
        (key,),
    ).fetchone()
    return int(missing + max(0, expected - leased))


def reserved(db: sqlite3.Connection) -> tuple[int, int]:
    """Bytes and chunk files that open drafts may still write."""
    missing, files = db.execute(
        "SELECT coalesce(sum(size), 0), count(*) FROM (SELECT DISTINCT l.digest, l.size FROM leases l"
        " JOIN drafts d ON d.key = l.draft WHERE d.settled = 0"
        " AND l.wanted AND l.digest NOT IN (SELECT digest FROM chunks))"
    ).fetchone()
    (beyond,) = db.execute(
        "SELECT coalesce(sum(max(0, expected - (SELECT coalesce(sum(size), 0) FROM leases"
        " WHERE draft = drafts.key))), 0) FROM drafts WHERE settled = 0"
    ).fetchone()
    return missing + beyond, files


@contextmanager
def left_to_reconcile(name: Digest) -> Iterator[None]:
    """Run the index's part of leaving a draft, which must not fail: on a full disk, the next open does it."""
    try:
        yield
    except (StoreError, UnavailableError) as error:
        _log.warning("the counts of draft %s are not settled yet: %s (%s)", name.short, error, error.code)
