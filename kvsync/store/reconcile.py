"""Making the index say what the files say: after a crash in part, after its loss altogether.

`reconcile` compares names only, and those of artifacts only when their folder has changed since it last did, so
that it is cheap enough for every open; `rebuild` reads everything but the chunks' bytes. Both run inside one
transaction of the caller.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import time
from typing import Final

from kvsync.errors import KvsyncError, NotFoundError
from kvsync.store import leases, records
from kvsync.store.artifacts import is_damage
from kvsync.store.index import add_chunks, create_tables
from kvsync.store.journal import read_journal
from kvsync.store.locks import DraftLock
from kvsync.store.parts import Parts
from kvsync.store.stored import LEAVES
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import MAX_LEAF_TABLE_BYTES

CLOCK_TICK_NS: Final = 3 * 10**9
"""Longer than the steps in which any file system keeps times."""
FEW: Final = 256
"""To compare so many names is not worth a write to the index, which reading commands otherwise leave alone."""
_log = logging.getLogger(__name__)


def reconcile(db: sqlite3.Connection, parts: Parts, *, thorough: bool = False) -> None:
    """Make up for what a killed process or a power cut kept from the index.

    A `thorough` one compares what a hand may have changed inside the artifacts' folders as well.
    """
    mark, settled = _mark(parts)
    (compared,) = db.execute("SELECT compared FROM totals").fetchone()
    if mark == compared and not thorough:
        # No artifact has come or gone. One that is kept in part may have become more, which changes no name.
        recorded = records.partial_extents(db)
        changed = {a for a, said in recorded.items() if parts.files.extent_bytes(a) != said}
    else:
        recorded, present = records.extents(db), set(parts.files.ids())
        for artifact in recorded.keys() - present:
            records.remove_artifact(db, artifact)
        changed = {a for a in present if a not in recorded or parts.files.extent_bytes(a) != recorded[a]}
    for artifact in sorted(changed, key=lambda a: (parts.files.created(a), a)):
        if not record(db, parts, artifact):
            records.remove_artifact(db, artifact)
            settled = False  # it is looked at again, and spoken of, at every open
    if mark != compared and settled and len(recorded) >= FEW:
        db.execute("UPDATE totals SET compared = ?", (mark,))
    for kind in leases.KINDS:
        _reconcile_drafts(db, parts, kind)


def _mark(parts: Parts) -> tuple[bytes, bool]:
    """Changes whenever an artifact is published or removed; and whether a change from now on certainly shows.

    A change within the same tick of the file system's clock as the last one would not.
    """
    status = os.fstat(parts.folder("artifacts").fd)
    mark = struct.pack(">Qq", status.st_ino, status.st_mtime_ns)
    return mark, 0 <= status.st_mtime_ns < time.time_ns() - CLOCK_TICK_NS


def record(db: sqlite3.Connection, parts: Parts, artifact: ArtifactId) -> bool:
    """Index an artifact from its files; False, with a log record, when they are damaged."""
    try:
        stored, table, tokens = parts.files.verify(artifact)
    except (KvsyncError, ProtocolError) as error:
        if not is_damage(error):
            raise
        _log.warning("artifact %s is damaged and not offered: %s (%s)", artifact, error, error.code)
        return False
    add_chunks(db, parts.chunks.sizes(leaf.digest for leaf in table.leaves))
    records.put_artifact(db, stored, table, tokens, parts.files.meta_bytes(artifact))
    return True


def _reconcile_drafts(db: sqlite3.Connection, parts: Parts, kind: str) -> None:
    folder = parts.folder(kind)
    present = set(folder.digests())
    rows = db.execute("SELECT name, settled FROM drafts WHERE kind = ?", (kind,)).fetchall()
    for raw, settled in rows:
        name = Digest(raw)
        if name not in present:
            leases.settle(db, parts.chunks, kind, name)
            leases.release(db, kind, name)
        elif not settled and (lock := DraftLock.attempt(folder, name.hex)) is not None:
            # The last lease of a computation may be of a chunk that never got into the journal.
            journalled = draft_leaves(parts, kind, name) if kind == leases.COMPUTE else None
            leases.close(db, parts.chunks, kind, name, journalled)
            lock.release()
    for name in sorted(present - {Digest(raw) for raw, _ in rows}):
        restore_draft(db, parts, kind, name)


def restore_draft(db: sqlite3.Connection, parts: Parts, kind: str, name: Digest) -> None:
    """Lease again what an unindexed draft needs, read from its folder."""
    lock = DraftLock.attempt(parts.folder(kind), name.hex)
    try:
        leaves = draft_leaves(parts, kind, name)
        if leaves is not None:
            leases.register(db, kind, name, leaves)
            if lock is not None:
                leases.close(db, parts.chunks, kind, name)
    finally:
        if lock is not None:
            lock.release()


def draft_leaves(parts: Parts, kind: str, name: Digest) -> list[Leaf] | None:
    """The leaves a draft's folder speaks of; None when it was left before it said any."""
    try:
        with parts.folder(kind).child(name.hex) as folder:
            if kind == leases.COMPUTE:
                return read_journal(folder)
            return list(LeafTable.parse(folder.read(LEAVES, MAX_LEAF_TABLE_BYTES)).leaves)
    except NotFoundError:
        return None
    except (KvsyncError, ProtocolError) as error:
        _log.warning("%s/%s holds nothing to resume: %s (%s)", kind, name.hex, error, error.code)
        return None


def rebuild(db: sqlite3.Connection, parts: Parts) -> None:
    """Fill fresh tables from the files. What drafts in use have leased is taken over from the old ones."""
    live = _live_drafts(db, parts)
    create_tables(db)
    add_chunks(db, parts.chunks.scan_all())
    for kind, name, expected, leaves, wanted in live:
        leases.register(db, kind, name, leaves, expected, wanted)
    reconcile(db, parts)


def _live_drafts(db: sqlite3.Connection, parts: Parts) -> list[tuple[str, Digest, int, list[Leaf], set[Digest]]]:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'leases'").fetchone() is None:
        return []
    found = []
    for key, kind, raw, expected in db.execute(
        "SELECT key, kind, name, expected FROM drafts WHERE settled = 0"
    ).fetchall():
        lock = DraftLock.attempt(parts.folder(kind), raw.hex())
        if lock is not None:
            lock.release()
            continue
        rows = db.execute("SELECT digest, size, wanted FROM leases WHERE draft = ?", (key,)).fetchall()
        leaves = [Leaf(Digest(digest), size) for digest, size, _ in rows]
        found.append((kind, Digest(raw), expected, leaves, {Digest(digest) for digest, _, wanted in rows if wanted}))
    return found
