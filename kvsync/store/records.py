"""The index rows of an artifact, computed from what was verified, and the questions they answer.

A row exists only for a published artifact. Prefix keys are those without a tenant's salt. Those of artifacts kept in
part stand in a table of their own, since of them it is not true that whoever has a key covers all blocks before it.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Sequence
from itertools import islice
from typing import Final

from kvsync.store.stored import StoredArtifact
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.prefix import block_keys, encode_tokens, start_key


def put_artifact(
    db: sqlite3.Connection, stored: StoredArtifact, leaves: LeafTable, tokens: Sequence[int], meta_bytes: int
) -> None:
    """Record an artifact; of one that is recorded already, its files' size and which part of it is here."""
    manifest, extent = stored.manifest, stored.extent
    said, to_end = (None, True) if extent is None else (extent.encode(), extent.to_end)
    known = db.execute("SELECT key, extent FROM artifacts WHERE id = ?", (stored.artifact.raw,)).fetchone()
    if known is not None:
        set_meta_bytes(db, stored.artifact, meta_bytes)
        if known[1] != said:
            db.execute(
                "UPDATE artifacts SET bytes = ?, extent = ?, to_end = ? WHERE key = ?",
                (stored.bytes, said, to_end, known[0]),
            )
            _put_keys(db, known[0], stored, tokens)
        return
    added = db.execute(
        "INSERT INTO artifacts (id, token_digest, token_count, compatibility, numerics, bytes, meta_bytes, extent,"
        " to_end) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            stored.artifact.raw,
            manifest.tokens.digest.raw,
            manifest.tokens.count,
            manifest.fingerprints.compatibility.digest.raw,
            manifest.fingerprints.numerics.digest.raw,
            stored.bytes,
            meta_bytes,
            said,
            to_end,
        ),
    )
    digests = {leaf.digest.raw for leaf in leaves.leaves}
    db.executemany("INSERT INTO artifact_chunks VALUES (?, ?)", [(added.lastrowid, digest) for digest in digests])
    _put_keys(db, added.lastrowid, stored, tokens)


def _put_keys(db: sqlite3.Connection, key: int | None, stored: StoredArtifact, tokens: Sequence[int]) -> None:
    """The keys of full blocks: of one kept in part, with whether a graft can begin behind that block."""
    for table in ("block_keys", "partial_keys"):
        db.execute(f"DELETE FROM {table} WHERE artifact = ?", (key,))  # noqa: S608
    manifest, extent = stored.manifest, stored.extent
    layout = manifest.layout
    found = islice(block_keys(start_key(manifest.fingerprints), tokens, manifest.schedule), layout.full_blocks)
    if extent is None:
        db.executemany("INSERT INTO block_keys VALUES (?, ?)", [(block.raw, key) for block in found])
        return
    rows = [(b.raw, key, extent.covers(count * layout.block_tokens)) for count, b in enumerate(found, 1)]
    db.executemany("INSERT INTO partial_keys VALUES (?, ?, ?)", rows)


def remove_artifact(db: sqlite3.Connection, artifact: ArtifactId) -> None:
    db.execute("DELETE FROM artifacts WHERE id = ?", (artifact.raw,))


def set_meta_bytes(db: sqlite3.Connection, artifact: ArtifactId, meta_bytes: int) -> None:
    db.execute("UPDATE artifacts SET meta_bytes = ? WHERE id = ?", (meta_bytes, artifact.raw))


def artifact_ids(db: sqlite3.Connection) -> list[ArtifactId]:
    """All recorded artifacts, the last recorded first."""
    return [ArtifactId(Digest(raw)) for (raw,) in db.execute("SELECT id FROM artifacts ORDER BY key DESC").fetchall()]


def kept(db: sqlite3.Connection) -> dict[ArtifactId, bool]:
    """All recorded artifacts, the last recorded first, and whether all of each is here."""
    rows = db.execute("SELECT id, extent IS NULL FROM artifacts ORDER BY key DESC")
    return {ArtifactId(Digest(raw)): bool(whole) for raw, whole in rows}


def is_recorded(db: sqlite3.Connection, artifact: ArtifactId) -> bool:
    return db.execute("SELECT 1 FROM artifacts WHERE id = ?", (artifact.raw,)).fetchone() is not None


def ids_with_prefix(db: sqlite3.Connection, digits: str) -> list[ArtifactId]:
    """Recorded artifacts whose id begins with these hex digits."""
    low, high = bytes.fromhex(digits.ljust(64, "0")), bytes.fromhex(digits.ljust(64, "f"))
    rows = db.execute("SELECT id FROM artifacts WHERE id BETWEEN ? AND ? ORDER BY id", (low, high)).fetchall()
    return [ArtifactId(Digest(raw)) for (raw,) in rows]


def extents(db: sqlite3.Connection) -> dict[ArtifactId, bytes | None]:
    """Every recorded artifact with what its file `extent` said."""
    return {ArtifactId(Digest(raw)): said for raw, said in db.execute("SELECT id, extent FROM artifacts")}


def partial_extents(db: sqlite3.Connection) -> dict[ArtifactId, bytes | None]:
    """As `extents`, those that are kept in part only."""
    rows = db.execute("SELECT id, extent FROM artifacts WHERE extent IS NOT NULL")
    return {ArtifactId(Digest(raw)): said for raw, said in rows}


def find_prefix(
    db: sqlite3.Connection, keys: Sequence[PrefixKey], without: Collection[ArtifactId] = ()
) -> tuple[ArtifactId, int] | None:
    """The complete artifact that shares the most full blocks, and how many; the last recorded of several.

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


def find_covered(
    db: sqlite3.Connection, keys: Sequence[PrefixKey], without: Collection[ArtifactId] = ()
) -> tuple[ArtifactId, int] | None:
    """The artifact kept in part with which a graft can begin behind the most of these blocks, and how many."""
    if db.execute("SELECT 1 FROM partial_keys LIMIT 1").fetchone() is None:
        return None
    for stop in range(len(keys), 0, -_KEYS_AT_ONCE):
        counts = {keys[count - 1].raw: count for count in range(max(0, stop - _KEYS_AT_ONCE) + 1, stop + 1)}
        rows = db.execute(
            "SELECT p.key, a.id FROM partial_keys p JOIN artifacts a ON a.key = p.artifact WHERE p.covered"  # noqa: S608
            f" AND p.key IN ({', '.join('?' * len(counts))}) ORDER BY p.artifact",
            tuple(counts),
        ).fetchall()
        found = [(counts[key], ArtifactId(Digest(raw))) for key, raw in rows]
        best = max(((n, at, a) for at, (n, a) in enumerate(found) if a not in without), default=None)
        if best is not None:
            return best[2], best[0]
    return None


_KEYS_AT_ONCE: Final = 512


def find_whole(
    db: sqlite3.Connection, tokens: Sequence[int], fingerprints: Fingerprints, without: Collection[ArtifactId] = ()
) -> ArtifactId | None:
    """The longest artifact, kept up to its end, under exactly these fingerprints with which `tokens` begin."""
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
            " AND token_count = ? AND token_digest = ? AND to_end ORDER BY key DESC LIMIT ?",
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
        "SELECT id FROM artifacts WHERE key IN (SELECT artifact FROM block_keys WHERE key = ?1"
        " UNION ALL SELECT artifact FROM partial_keys WHERE key = ?1)"
        " OR (compatibility = ?2 AND numerics = ?3 AND token_digest = ?4) ORDER BY key DESC",
        (
            keys[0].raw if keys else b"",
            fingerprints.compatibility.digest.raw,
            fingerprints.numerics.digest.raw,
            tokens.raw,
        ),
    ).fetchall()
    return [ArtifactId(Digest(raw)) for (raw,) in rows]


def shares(db: sqlite3.Connection, artifact: ArtifactId, key: PrefixKey | None, tokens: Digest) -> bool:
    """Whether an artifact has a full block of this key, or these very tokens."""
    row = db.execute(
        "SELECT token_digest = ?3 OR EXISTS (SELECT 1 FROM block_keys b WHERE b.key = ?2 AND b.artifact = a.key)"
        " OR EXISTS (SELECT 1 FROM partial_keys p WHERE p.key = ?2 AND p.artifact = a.key)"
        " FROM artifacts a WHERE a.id = ?1",
        (artifact.raw, b"" if key is None else key.raw, tokens.raw),
    ).fetchone()
    return row is not None and bool(row[0])


def fingerprint_holders(db: sqlite3.Connection) -> list[ArtifactId]:
    """One artifact for each pair of fingerprints here."""
    rows = db.execute(
        "SELECT id FROM artifacts WHERE key IN (SELECT max(key) FROM artifacts GROUP BY compatibility, numerics)"
        " ORDER BY key DESC"
    ).fetchall()
    return [ArtifactId(Digest(raw)) for (raw,) in rows]
