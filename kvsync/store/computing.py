"""`ComputeDraft`: an artifact computed here, leaf by leaf in order, resumable after a kill at any moment.

    append: lease ─ chunk written, synced, renamed ─ journal line synced        (each step undoes nothing)

The draft is named by the digest of its plan (what is computed under which fingerprints), because the
artifact's own name is known only at the end. Knows no engine.
"""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import TYPE_CHECKING

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.store import leases
from kvsync.store.drafts import PullDraft
from kvsync.store.journal import Journal
from kvsync.store.locks import DraftLock
from kvsync.store.parts import Parts
from kvsync.store.quota import check_room, usage
from kvsync.store.room import open_account
from kvsync.store.stored import StoredArtifact
from kvsync_protocol.digest import Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.limits import MAX_CHUNK_BYTES
from kvsync_protocol.manifest import Manifest

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ComputeDraft:
    """An unfinished computation under this caller's lock. Context manager; one thread at a time."""

    def __init__(self, parts: Parts, plan: Digest, expected_bytes: int, deadline: float | None) -> None:
        """Wait for the lock, read the journal, lease what it lists and keep the part that is really here.

        Raises:
            UnavailableError: `store.busy` at the deadline.
            StoreError: `store.quota`, `store.full`, `store.unwritable`, `store.journal_version`.
        """
        self.plan = plan
        self._parts = parts
        self._lock: DraftLock | None = DraftLock.acquire(parts.folder(leases.COMPUTE), plan.hex, deadline)
        self._journal: Journal | None = None
        try:
            self._journal = Journal(self._lock.folder)
            open_account(parts, leases.COMPUTE, plan, self._journal.leaves, expected_bytes)
            # Leased first, looked at afterwards: what is seen now cannot be collected any more.
            sizes = parts.chunks.sizes(leaf.digest for leaf in self._journal.leaves)
            whole = next(
                (i for i, leaf in enumerate(self._journal.leaves) if sizes.get(leaf.digest) != leaf.size),
                len(self._journal.leaves),
            )
            if whole < len(self._journal.leaves):
                self.truncate(whole)
        except BaseException:
            if self._journal is not None:
                if not self._journal.leaves:
                    parts.temp.discard_tree(plan.hex, parts.folder(leases.COMPUTE))
                self._journal.close()
            self._lock.release()
            raise

    @property
    def leaves(self) -> list[Leaf]:
        """The leaves on disk so far, in artifact order; a copy."""
        return list(self._open().leaves)

    def truncate(self, count: int) -> None:
        """Drop the leaves after the first `count`, to start again at a block boundary.

        Raises:
            UsageError: `store.leaf_index` unless 0 <= count <= number of leaves.
        """
        journal = self._open()
        if not 0 <= count <= len(journal.leaves):
            raise UsageError("store.leaf_index", f"{count} of {len(journal.leaves)} leaves cannot be kept")
        journal.truncate(count)
        with self._parts.index.writing() as db:
            leases.settle(db, self._parts.chunks, leases.COMPUTE, self.plan)
            leases.narrow(db, leases.COMPUTE, self.plan, journal.leaves)

    def append(self, data: Buffer) -> Leaf:
        """Hash, write, sync and journal the next chunk, 1 byte to 4 MiB; on return it survives a power cut.

        Raises:
            UsageError: `store.chunk_size`.
            StoreError: `store.quota`, `store.full`, `store.unwritable`; the journal is as it was.
        """
        journal, view = self._open(), memoryview(data).cast("B")
        if not 1 <= view.nbytes <= MAX_CHUNK_BYTES:
            raise UsageError("store.chunk_size", f"a chunk has 1 to {MAX_CHUNK_BYTES} bytes, not {view.nbytes}")
        leaf = Leaf(Digest(hashlib.sha256(view).digest()), view.nbytes)
        with self._parts.index.writing() as db:
            leases.lease(db, leases.COMPUTE, self.plan, (leaf,))
            if self._parts.limits.quota_bytes or self._parts.limits.quota_files:
                check_room(usage(db, self._parts.root, self._parts.limits), self._parts.root)
        if self._parts.chunks.sizes((leaf.digest,)).get(leaf.digest) != leaf.size:
            self._parts.chunks.publish(leaf.digest, leaf.size, (view,))
        journal.append(leaf)
        return leaf

    def adopt(self, leaf: Leaf) -> None:
        """Journal a chunk that the store has already, as the next leaf.

        Raises:
            NotFoundError: `store.unknown_chunk`.
        """
        journal = self._open()
        with self._parts.index.writing() as db:
            leases.lease(db, leases.COMPUTE, self.plan, (leaf,))
        if self._parts.chunks.sizes((leaf.digest,)).get(leaf.digest) != leaf.size:
            raise NotFoundError("store.unknown_chunk", f"chunk {leaf.digest.short} is not here", digest=leaf.digest)
        journal.append(leaf)

    def publish(
        self, envelope: Envelope, manifest: Manifest, leaves: bytes, tokens: bytes, *, cost_s: float | None = None
    ) -> StoredArtifact:
        """Make the artifact visible and end the draft; `cost_s` is how long computing all of it takes here.

        Raises:
            StoreError: `store.incomplete` when the journal's leaves are not those of `leaves`.
            Otherwise as `PullDraft` and its `publish`.
        """
        journal = self._open()
        if tuple(journal.leaves) != manifest.check_leaves(leaves).leaves:
            raise StoreError("store.incomplete", "what was computed is not what the leaf table lists")
        with PullDraft(self._parts, envelope, manifest, leaves, tokens, None, None, cost_s) as draft:
            stored = draft.publish()
        with leases.left_to_reconcile(self.plan), self._parts.index.writing() as db:
            self._parts.temp.discard_tree(self.plan.hex, self._parts.folder(leases.COMPUTE))
            leases.release(db, leases.COMPUTE, self.plan)
        self._end()
        return stored

    def close(self) -> None:
        """Leave the draft; what was appended stays for a resume. Safe to call twice."""
        if self._lock is None:
            return
        journal = self._open()
        try:
            self._lock.mark_active()
            with leases.left_to_reconcile(self.plan), self._parts.index.writing() as db:
                leases.close(db, self._parts.chunks, leases.COMPUTE, self.plan, journal.leaves)
        finally:
            self._end()

    def _end(self) -> None:
        if self._lock is not None and self._journal is not None:
            self._journal.close()
            self._lock.release()
        self._lock = None

    def _open(self) -> Journal:
        if self._lock is None or self._journal is None:
            raise UsageError("store.draft_closed", "this draft was published or left")
        return self._journal

    def __enter__(self) -> ComputeDraft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
