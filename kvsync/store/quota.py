"""How much the store may hold, how much it does, and the refusal of what would be too much.

Counts live in the shared index, so several processes cannot overfill one disk with private ones.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from kvsync.config import Settings
from kvsync.errors import StoreError, UsageError
from kvsync.store import leases
from kvsync.store.chunks import below_floor
from kvsync.store.folder import Folder
from kvsync_protocol.limits import MiB

FILES_PER_ARTIFACT: Final = 5
"""Three files, what computing took where it is known, and their folder."""
FILES_PER_DRAFT: Final = 5


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Quotas of 0 are none.

    Raises:
        UsageError: `store.limits` for negative values.
    """

    quota_bytes: int = 0
    """Largest sum of chunks, artifact files and reservations."""
    quota_files: int = 0
    """Largest number of files and folders, reservations included."""
    free_floor_bytes: int = 256 * MiB
    """Space on the disk that the store leaves to others."""
    draft_ttl_s: float = 7 * 86400.0
    """How long gc keeps what an abandoned transfer or computation left for a resume."""

    def __post_init__(self) -> None:
        if min(self.quota_bytes, self.quota_files, self.free_floor_bytes, self.draft_ttl_s) < 0:
            raise UsageError("store.limits", "limits of a store are not negative")

    @classmethod
    def of(cls, settings: Settings) -> StoreLimits:
        """The limits that a node's settings name."""
        return cls(settings.quota_bytes, settings.quota_files, settings.free_floor_bytes)


@dataclass(frozen=True, slots=True)
class Usage:
    """What the store holds. `bytes` and `files` are what the quotas limit, reservations aside."""

    bytes: int
    files: int
    artifacts: int
    partial: int
    """Of those artifacts, kept in part."""
    chunks: int
    drafts: int
    """Transfers and computations that are under way or can be resumed."""
    leases: int
    """Chunks those keep from gc."""
    reserved_bytes: int
    """What open drafts may still write."""
    reserved_files: int
    quota_bytes: int
    quota_files: int
    free_bytes: int
    free_floor_bytes: int


def usage(db: sqlite3.Connection, folder: Folder, limits: StoreLimits) -> Usage:
    """Read the counts; the caller has settled dead drafts."""
    chunk_bytes, chunks = db.execute("SELECT bytes, chunks FROM totals").fetchone()
    artifacts, partial, meta = db.execute(
        "SELECT count(*), count(extent), coalesce(sum(meta_bytes), 0) FROM artifacts"
    ).fetchone()
    (drafts,) = db.execute("SELECT count(*) FROM drafts").fetchone()
    (leased,) = db.execute("SELECT count(DISTINCT digest) FROM leases").fetchone()
    reserved_bytes, reserved_files = leases.reserved(db)
    return Usage(
        bytes=chunk_bytes + meta,
        files=chunks + FILES_PER_ARTIFACT * artifacts + partial + FILES_PER_DRAFT * drafts,
        artifacts=artifacts,
        partial=partial,
        chunks=chunks,
        drafts=drafts,
        leases=leased,
        reserved_bytes=reserved_bytes,
        reserved_files=reserved_files,
        quota_bytes=limits.quota_bytes,
        quota_files=limits.quota_files,
        free_bytes=folder.free_bytes(),
        free_floor_bytes=limits.free_floor_bytes,
    )


def over_quota(now: Usage) -> tuple[int, int]:
    """Bytes and files, reservations included, by which the store is over its quotas."""
    over_bytes = now.bytes + now.reserved_bytes - now.quota_bytes if now.quota_bytes else 0
    over_files = now.files + now.reserved_files - now.quota_files if now.quota_files else 0
    return max(0, over_bytes), max(0, over_files)


def quota_error(now: Usage) -> StoreError:
    """`store.quota`, with fields `over_bytes` and `over_files`."""
    over_bytes, over_files = over_quota(now)
    return StoreError(
        "store.quota",
        "the store's quota has no room for this",
        hint="kvsync gc, kvsync rm, or a larger quota_bytes or quota_files",
        over_bytes=over_bytes,
        over_files=over_files,
    )


def check_room(now: Usage, folder: Folder) -> None:
    """Refuse what has just been reserved if it does not fit.

    Raises:
        StoreError: `store.quota` or `store.full`.
    """
    if any(over_quota(now)):
        raise quota_error(now)
    if now.free_bytes - now.reserved_bytes < now.free_floor_bytes:
        raise below_floor(folder, now.free_floor_bytes)
