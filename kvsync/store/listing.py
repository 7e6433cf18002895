"""What a list of artifacts shows, from the index: one question, however many there are, and no file is opened.

An artifact's row is taken from its files when it is listed for the first time and again when its envelope has
changed, which its file's status tells. Which of the reader's keys have signed it is remembered with it, and only
for lists: whoever uses an artifact verifies the signatures themselves.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from kvsync.errors import KvsyncError
from kvsync.store.parts import Parts
from kvsync.store.stored import ENVELOPE
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.signing import PublicKey

FEW: Final = 16
"""To read so many from their files again costs little; to remember them is a write, by a command that only reads."""
_log = logging.getLogger(__name__)
_MARK: Final = struct.Struct(">QQQQ")


@dataclass(frozen=True, slots=True)
class Listed:
    """One artifact of a list. `partial` when only a part is kept here; `signers` of the keys that were given.

    `created` in seconds of the epoch, `bytes` are those kept here.
    """

    artifact: ArtifactId
    tokens: int
    bytes: int
    partial: bool
    created: float
    pinned: bool
    signers: int


def list_artifacts(parts: Parts, keys: Collection[PublicKey]) -> list[Listed]:
    """Complete artifacts, newest first; damaged ones are left to fsck. Raises StoreError `store.*`."""
    judged = hashlib.sha256(b"".join(sorted(key.raw for key in keys))).digest()
    pins = set(parts.folder("pins").names())
    with parts.index.reading() as db:
        rows = db.execute(
            "SELECT a.id, a.token_count, a.bytes, a.extent IS NOT NULL, l.mark, l.created, l.signers"
            " FROM artifacts a LEFT JOIN listed l ON l.artifact = a.key AND l.judged = ?",
            (judged,),
        ).fetchall()
    found, changed = [], []
    for raw, tokens, size, partial, known, created, signers in rows:
        name = raw.hex()
        status = parts.folder("artifacts").status(f"{name}/{ENVELOPE}")
        if known is None or status is None or _mark(status) != known:
            changed.append(ArtifactId(Digest(raw)))
            continue
        artifact = ArtifactId(Digest(raw))
        found.append(Listed(artifact, tokens, size, bool(partial), created, name in pins, signers))
    found += _read(parts, changed, keys, judged)
    found.sort(key=lambda listed: listed.created, reverse=True)
    return found


def _read(parts: Parts, artifacts: Iterable[ArtifactId], keys: Collection[PublicKey], judged: bytes) -> list[Listed]:
    """Those that are not listed as they are now, from their files; remembered if the index can be written."""
    found, rows = [], []
    for artifact in artifacts:
        status = parts.folder("artifacts").status(f"{artifact.hex}/{ENVELOPE}")  # before it is read
        for stored in parts.sound([artifact]):
            signers = len(stored.envelope.signers(keys))
            tokens = stored.manifest.tokens.count
            partial = stored.extent is not None
            found.append(Listed(artifact, tokens, stored.bytes, partial, stored.created, stored.pinned, signers))
            if status is not None:
                rows.append((_mark(status), stored.created, judged, signers, artifact.raw))
    if len(rows) >= FEW:
        try:
            with parts.index.writing() as db:
                _remember(db, rows)
        except KvsyncError as error:
            _log.debug("the list is not remembered: %s (%s)", error, error.code)
    return found


def _remember(db: sqlite3.Connection, rows: list[tuple[bytes, float, bytes, int, bytes]]) -> None:
    db.executemany(
        "INSERT OR REPLACE INTO listed (artifact, mark, created, judged, signers)"
        " SELECT key, ?, ?, ?, ? FROM artifacts WHERE id = ?",
        rows,
    )


def _mark(status: os.stat_result) -> bytes:
    """Changes with every write to the file, and when another takes its place."""
    mask = 2**64 - 1
    return _MARK.pack(
        status.st_ino & mask, status.st_size & mask, status.st_mtime_ns & mask, status.st_ctime_ns & mask
    )
