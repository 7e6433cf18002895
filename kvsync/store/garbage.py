"""gc: remove what nobody needs, and under a quota of what somebody might what is worth least (worth.py).

    needed:    chunks of artifacts, of live drafts, of drafts left less than `draft_ttl_s` ago
    evictable: artifacts without a pin, a ref or a holder, and only while the store is over its quota

Mark and delete happen in one `BEGIN IMMEDIATE` transaction, in which every lease is taken too, so
nothing can be leased between the two. Files go first and rows after, so that freeing space needs none.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass

from kvsync.errors import StoreError
from kvsync.store import leases, locks, records
from kvsync.store.index import add_chunks
from kvsync.store.locks import DraftLock
from kvsync.store.parts import Parts
from kvsync.store.quota import Usage, over_quota, quota_error, usage
from kvsync.store.reconcile import reconcile
from kvsync.store.worth import by_profit
from kvsync_protocol.digest import ArtifactId, Digest

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcReport:
    """What was removed, or would be."""

    dry_run: bool
    chunks: int
    bytes: int
    """Of those chunks."""
    evicted: tuple[ArtifactId, ...]
    """Artifacts removed because the store was over its quota, in that order."""
    drafts: int
    """Abandoned transfers and computations, past their time."""
    temp_files: int
    """Unpublished writes of processes that ended."""
    quarantined: int
    """Bad files that fsck set aside longer than `draft_ttl_s` ago."""


def collect(parts: Parts, *, dry_run: bool = False) -> GcReport:
    """Run gc. Raises as `Store.gc`."""
    if dry_run:
        with parts.index.rehearsing() as db:
            return Collection(db, parts, dry_run=True).run()
    with parts.spending_reserve(), parts.index.writing() as db:
        return Collection(db, parts).run()


class Collection:
    """One run inside one transaction of the caller's."""

    def __init__(self, db: sqlite3.Connection, parts: Parts, *, dry_run: bool = False) -> None:
        self._db, self._parts, self._dry_run = db, parts, dry_run
        reconcile(db, parts, thorough=True)

    def run(self, *, must_fit: bool = False) -> GcReport:
        """Mark, evict, delete.

        Raises:
            StoreError: `store.quota` under `must_fit`, when the quotas cannot be kept; nothing was removed.
        """
        drafts = self._drop_drafts()
        self._db.execute("SAVEPOINT marked")
        present = self._parts.chunks.scan_all()
        references = self._references()
        garbage = {digest: size for digest, size in present.items() if digest.raw not in references}
        # Counts first, so that what eviction compares with the quota is what the files say.
        self._match_rows(present, garbage)
        with ExitStack() as holders:
            evicted = self._evict(present, references, garbage, holders)
            if must_fit and any(over_quota(self._usage())):
                refusal = quota_error(self._usage())
                self._db.execute("ROLLBACK TO marked")
                raise refusal
            if not self._dry_run:
                for artifact in evicted:
                    self._parts.files.discard(artifact)
        if not self._dry_run:
            for digest in garbage:
                self._parts.chunks.remove(digest)
        report = GcReport(
            dry_run=self._dry_run,
            chunks=len(garbage),
            bytes=sum(garbage.values()),
            evicted=tuple(evicted),
            drafts=drafts,
            temp_files=self._parts.temp.sweep(dry_run=self._dry_run),
            quarantined=self._empty_quarantine(),
        )
        if not self._dry_run:
            _log.info("gc removed %d chunks, %d bytes, %d artifacts", report.chunks, report.bytes, len(evicted))
        return report

    def _usage(self) -> Usage:
        return usage(self._db, self._parts.root, self._parts.limits)

    def _drop_drafts(self) -> int:
        """Drafts that nobody holds or serves and nobody came back to in time."""
        dropped, oldest = 0, time.time() - self._parts.limits.draft_ttl_s
        for kind in leases.KINDS:
            folder = self._parts.folder(kind)
            recorded = {raw for (raw,) in self._db.execute("SELECT name FROM drafts WHERE kind = ?", (kind,))}
            for name in folder.digests():
                lock = DraftLock.attempt(folder, name.hex)
                if lock is None:
                    continue
                try:
                    # Without a row there is nothing in it to resume. Who serves it holds its folder.
                    unwanted = lock.last_active <= oldest or name.raw not in recorded
                    if unwanted and locks.attempt(lock.folder.fd):
                        dropped += 1
                        self._db.execute("DELETE FROM drafts WHERE kind = ? AND name = ?", (kind, name.raw))
                        if not self._dry_run:
                            self._parts.temp.discard_tree(name.hex, folder)
                finally:
                    lock.release()
        return dropped

    def _references(self) -> Counter[bytes]:
        """How many artifacts and drafts need each chunk."""
        rows = self._db.execute("SELECT digest FROM artifact_chunks UNION ALL SELECT digest FROM leases")
        return Counter(raw for (raw,) in rows)

    def _match_rows(self, present: dict[Digest, int], garbage: dict[Digest, int]) -> None:
        """Let the chunk rows be exactly the needed files."""
        recorded = {Digest(raw): size for raw, size in self._db.execute("SELECT digest, size FROM chunks")}
        kept = {digest: size for digest, size in present.items() if digest not in garbage}
        self._forget(digest for digest, size in recorded.items() if kept.get(digest) != size)
        add_chunks(self._db, kept)

    def _forget(self, digests: Iterable[Digest]) -> None:
        self._db.executemany("DELETE FROM chunks WHERE digest = ?", [(digest.raw,) for digest in digests])

    def _evict(
        self,
        present: dict[Digest, int],
        references: Counter[bytes],
        garbage: dict[Digest, int],
        holders: ExitStack,
    ) -> list[ArtifactId]:
        """Choose artifacts until the quotas are kept; what only they need joins the garbage."""
        evicted: list[ArtifactId] = []
        candidates: list[ArtifactId] | None = None
        while any(over_quota(self._usage())):
            if candidates is None:
                candidates = self._candidates()
            if not candidates:
                break
            artifact = candidates.pop()
            holder = self._parts.files.lock(artifact, shared=False)
            if holder is None:
                continue  # somebody is reading it
            holders.callback(holder.close)
            evicted.append(artifact)
            rows = self._db.execute(
                "SELECT digest FROM artifact_chunks WHERE artifact = (SELECT key FROM artifacts WHERE id = ?)",
                (artifact.raw,),
            ).fetchall()
            for (raw,) in rows:
                references[raw] -= 1
                digest = Digest(raw)
                if references[raw] == 0 and digest in present:
                    garbage[digest] = present[digest]
                    self._forget((digest,))
            records.remove_artifact(self._db, artifact)
        return evicted

    def _candidates(self) -> list[ArtifactId]:
        """Evictable artifacts, what is worth least last."""
        named = {ref.artifact for ref in self._parts.refs.refs()}
        free = [a for a in records.artifact_ids(self._db) if a not in named and not self._parts.is_pinned(a)]
        return by_profit(self._db, self._parts.files, free)[::-1]

    def _empty_quarantine(self) -> int:
        folder, oldest, found = self._parts.folder("quarantine"), time.time() - self._parts.limits.draft_ttl_s, 0
        for name in folder.names():
            status = folder.status(name)
            if status is not None and status.st_ctime <= oldest:
                found += 1
                if not self._dry_run:
                    folder.remove_tree(name)
        return found


def remove(parts: Parts, artifact: ArtifactId) -> None:
    """Take one artifact away, its chunks left to gc. Raises as `Store.remove`."""
    with parts.spending_reserve(), parts.index.writing() as db:
        if parts.is_pinned(artifact):
            raise StoreError("store.pinned", f"artifact {artifact.short} is pinned", hint="unpin it first")
        holder = parts.files.lock(artifact, shared=False)
        if holder is None:
            raise StoreError("store.in_use", f"artifact {artifact.short} is in use", hint="try again later")
        with holder:
            parts.files.discard(artifact)
        records.remove_artifact(db, artifact)
