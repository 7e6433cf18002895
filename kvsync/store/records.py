"""The index rows of an artifact, computed from what was verified, and the questions they answer.

A row exists only for a complete artifact. Prefix keys are those without a tenant's salt.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Sequence
from itertools import islice

from kvsync.store.artifacts import StoredArtifact
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.prefix import block_keys, encode_tokens, start_key


def add_artifact(
    db: sqlite3.Connection, stored: StoredArtifact, leaves: LeafTable, tokens: Sequence[int], meta_bytes: int
) -> None:
    """Record a complete artifact; nothing when it is recorded already."""
    manifest = stored.manifest
    added = db.execute(
        "INSERT OR IGNORE INTO artifacts (id, token_digest, token_count, compatibility, numerics, bytes, meta_bytes)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            stored.artifact.raw,
            manifest.tokens.digest.raw,
            manifest.tokens.count,
            manifest.fingerprints.compatibility.digest.raw,
            manifest.fingerprints.numerics.digest.raw,
            stored.bytes,
            meta_bytes,
        ),
    )
    if not added.rowcount:
        return
    key = added.lastrowid
    digests = {leaf.digest.raw for leaf in leaves.leaves}
    db.executemany("INSERT INTO artifact_chunks VALUES (?, ?)", [(key, digest) for digest in digests])
    keys = block_keys(start_key(manifest.fingerprints), tokens, manifest.schedule)
    db.executemany(
        "INSERT INTO block_keys VALUES (?, ?)",
        [(block_key.raw, key) for block_key in islice(keys, manifest.layout.full_blocks)],
    )


def remove_artifact(db: sqlite3.Connection, artifact: ArtifactId) -> None:
    db.execute("DELETE FROM artifacts WHERE id = ?", (artifact.raw,))


def set_meta_bytes(db: sqlite3.Connection, artifact: ArtifactId, meta_bytes: int) -> None:
    db.execute("UPDATE artifacts SET meta_bytes = ? WHERE id = ?", (meta_bytes, artifact.raw))


def artifact_ids(db: sqlite3.Connection) -> list[ArtifactId]:
    """All recorded artifacts, the last recorded first."""
    return [ArtifactId(Digest(raw)) for (raw,) in db.execute("SELECT id FROM artifacts ORDER BY key DESC").fetchall()]


def is_recorded(db: sqlite3.Connection, artifact: ArtifactId) -> bool:
    return db.execute("SELECT 1 FROM artifacts WHERE id = ?", (artifact.raw,)).fetchone() is not None


def ids_with_prefix(db: sqlite3.Connection, digits: str) -> list[ArtifactId]:
    """Recorded artifacts whose id begins with these hex digits."""
    low, high = bytes.fromhex(digits.ljust(64, "0")), bytes.fromhex(digits.ljust(64, "f"))
    rows = db.execute("SELECT id FROM artifacts WHERE id BETWEEN ? AND ? ORDER BY id", (low, high)).fetchall()
    return [ArtifactId(Digest(raw)) for (raw,) in rows]


def find_prefix(
    db: sqlite3.Connection, keys: Sequence[PrefixKey], without: Collection[ArtifactId] = ()
) -> tuple[ArtifactId, int] | None:
    """The artifact that shares the most full blocks, and how many; the last recorded of several.

    A key chains all keys before it, so an artifact that has one has those before it too: bisect.
    """

    def holder(count: int) -> ArtifactId | None:
        rows = db.execute(
            "SELECT a.id FROM block_keys b JOIN artifacts a ON a.key = b.artifact WHERE b.key = ?"
            " ORDER BY b.artifact DESC LIMIT ?",
            (keys[count - 1].raw, len(without) + 1),
        ).fetchall()
        return next((found for (raw,) in rows if (found := ArtifactId(Digest(raw))) not in without), None)

    low, high, best = 0, len(keys), None
    while low < high:
        middle = (low + high + 1) // 2
        found = holder(middle)
        if found is None:
            high = middle - 1
        else:
            low, best = middle, found
    return (best, low) if best is not None else None


def find_whole(
    db: sqlite3.Connection, tokens: Sequence[int], fingerprints: Fingerprints, without: Collection[ArtifactId] = ()
) -> ArtifactId | None:
    """The longest artifact under exactly these fingerprints with which `tokens` begin."""
    pair = (fingerprints.compatibility.digest.raw, fingerprints.numerics.digest.raw)
    counts = db.execute(
        "SELECT DISTINCT token_count FROM artifacts WHERE compatibility = ? AND numerics = ? AND token_count <= ?"
        " ORDER BY token_count",
        (*pair, len(tokens)),
    ).fetchall()
    encoded, state, done = memoryview(encode_tokens(tokens)), hashlib.sha256(), 0
    best: ArtifactId | None = None
    for (count,) in counts:
        state.update(encoded[4 * done : 4 * count])
        done = count
        rows = db.execute(
            "SELECT id FROM artifacts WHERE compatibility = ? AND numerics = ?"
            " AND token_count = ? AND token_digest = ? ORDER BY key DESC LIMIT ?",
            (*pair, count, state.digest(), len(without) + 1),
        ).fetchall()
        found = (ArtifactId(Digest(raw)) for (raw,) in rows)
        best = next((artifact for artifact in found if artifact not in without), best)
    return best


def find_related(
    db: sqlite3.Connection, keys: Sequence[PrefixKey], tokens: Digest, fingerprints: Fingerprints
) -> list[ArtifactId]:
    """Artifacts that share a full block with a context of these block keys, or all tokens, most recent first."""
    rows = db.execute(
        "SELECT id FROM artifacts WHERE key IN (SELECT artifact FROM block_keys WHERE key = ?)"
        " OR (compatibility = ? AND numerics = ? AND token_digest = ?) ORDER BY key DESC",
        (
            keys[0].raw if keys else b"",
            fingerprints.compatibility.digest.raw,
            fingerprints.numerics.digest.raw,
            tokens.raw,
        ),
    ).fetchall()
    return [ArtifactId(Digest(raw)) for (raw,) in rows]


def fingerprint_holders(db: sqlite3.Connection) -> list[ArtifactId]:
    """One artifact for each pair of fingerprints here."""
    rows = db.execute(
        "SELECT id FROM artifacts WHERE key IN (SELECT max(key) FROM artifacts GROUP BY compatibility, numerics)"
        " ORDER BY key DESC"
    ).fetchall()
    return [ArtifactId(Digest(raw)) for (raw,) in rows]
