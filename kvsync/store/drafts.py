"""`PullDraft`: an artifact whose chunks arrive from elsewhere, in any order, from several threads.

    pull_draft ─ OS lock ─ envelope, leaves, tokens in partial/ ─ leases ─► put … put ─► publish
                                                                              │
                    left, killed: the chunks stay; the next draft misses only the rest

A draft may be for grafts at certain positions only: then it misses what those need, and what is published is an
artifact kept in part (extent.py), or more of one. A chunk that is in chunks/ is the record that it was verified.
Knows no peer.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.store import leases, records
from kvsync.store.artifacts import write_extent
from kvsync.store.extent import Extent
from kvsync.store.index import add_chunks
from kvsync.store.locks import LOCK_NAME, DraftLock
from kvsync.store.parts import Parts
from kvsync.store.room import open_account
from kvsync.store.stored import ENVELOPE, LEAVES, TOKENS, StoredArtifact
from kvsync.store.worth import write_cost
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Manifest

if TYPE_CHECKING:
    from typing_extensions import Buffer

_log = logging.getLogger(__name__)
RECORD_EVERY = 32
"""Chunks between two updates of the shared count: few enough for others to see, too many to cost."""


class PullDraft:
    """An unfinished artifact, or part of one, under this caller's lock. Context manager.

    `put` may be called by many threads. Leaving it without `publish` keeps its verified chunks for a resume until
    gc finds them expired.
    """

    def __init__(
        self,
        parts: Parts,
        envelope: Envelope,
        manifest: Manifest,
        leaves: bytes,
        tokens: bytes,
        positions: Collection[int] | None,
        deadline: float | None,
        cost_s: float | None = None,
    ) -> None:
        """Check the four against each other, wait for the lock, lease every chunk, reserve those that are wanted.

        `cost_s` is how long computing it took here, where it was computed.

        Raises:
            UsageError: `store.envelope` when envelope and manifest are not of one payload; `store.extent` when no
                graft can begin at one of the positions.
            IntegrityError: `integrity.leaf_table`, `integrity.root`, `leaves.layout`, `integrity.tokens`.
            UnavailableError: `store.busy` at the deadline.
            StoreError: `store.quota`, `store.full`, `store.unwritable`.
        """
        if envelope.payload != manifest.encode():
            raise UsageError("store.envelope", "the envelope is not of this manifest")
        self.artifact: ArtifactId = manifest.artifact
        self.leaves: LeafTable = manifest.check_leaves(leaves)
        self._token_ids = manifest.check_tokens(tokens)
        self.extent = None if positions is None else Extent.of(manifest.layout, positions)
        self._wanted = self._select()
        self._parts, self._envelope, self._manifest = parts, envelope, manifest
        self._cost = cost_s
        self._landed: dict[Digest, int] = {}
        self._landed_lock = threading.Lock()
        self._ending = threading.Lock()  # a caller that was cancelled leaves while its thread still publishes
        self._lock: DraftLock | None = DraftLock.acquire(parts.folder(leases.PARTIAL), self.artifact.hex, deadline)
        try:
            fresh = self._lock.folder.status(LEAVES) is None
            try:
                for name, data in ((ENVELOPE, envelope.encode()), (TOKENS, tokens), (LEAVES, leaves)):
                    self._keep(name, data)
                wanted = {leaf.digest for leaf in self._wanted.values()}
                open_account(parts, leases.PARTIAL, self.artifact, self.leaves.leaves, wanted=wanted)
            except BaseException:
                if fresh:
                    parts.temp.discard_tree(self.artifact.hex, parts.folder(leases.PARTIAL))
                raise
        except BaseException:
            self._lock.release()
            raise

    def _keep(self, name: str, data: bytes) -> None:
        folder = self._held().folder
        try:
            if folder.read(name, len(data)) == data:
                return
        except (NotFoundError, StoreError):
            pass  # absent, or what another version left: written anew
        self._parts.temp.publish(data, folder, name)

    def _select(self) -> dict[int, Leaf]:
        """The leaves this draft is for, by index, in order."""
        if self.extent is None:
            return dict(enumerate(self.leaves.leaves))
        return {span.index: self.leaves.leaves[span.index] for span in self.extent.spans()}

    def missing(self) -> list[int]:
        """Indexes of wanted leaves whose chunk is not here yet, in order; looked up at each call."""
        return self._lacking(self._parts.chunks.sizes(leaf.digest for leaf in self._wanted.values()))

    def _lacking(self, sizes: Mapping[Digest, int]) -> list[int]:
        return [i for i, leaf in self._wanted.items() if sizes.get(leaf.digest) != leaf.size]

    def put(self, index: int, data: Buffer) -> None:
        """Verify the bytes of leaf `index` and store them; a leaf already here is verified and left.

        `data` must not change during the call. Raises as `put_pieces`.
        """
        self.put_pieces(index, (data,))

    def put_pieces(self, index: int, pieces: Iterable[Buffer]) -> None:
        """`put` of what comes in pieces: each is hashed and written while it is in the CPU's cache.

        Hashes once, without the GIL and without a lock, and copies nothing. The chunk gets its name when
        its last byte has proved right; what `pieces` raises passes through, and nothing was stored.

        Raises:
            UsageError: `store.leaf_index`.
            IntegrityError: `integrity.chunk`; nothing was stored.
            StoreError: `store.full`, `store.unwritable`; what was stored before stays.
        """
        self._held()
        if not 0 <= index < len(self.leaves.leaves):
            raise UsageError("store.leaf_index", f"no leaf {index} in an artifact of {len(self.leaves.leaves)}")
        leaf, verified = self.leaves.leaves[index], self._verified(index, pieces)
        if self._parts.chunks.sizes((leaf.digest,)).get(leaf.digest) == leaf.size:
            for _ in verified:
                pass
        else:
            self._parts.chunks.publish(leaf.digest, leaf.size, verified)
            self._count(leaf.digest, leaf.size)

    def _verified(self, index: int, pieces: Iterable[Buffer]) -> Iterator[memoryview]:
        """Hands `pieces` on, and raises before the end unless together they are the leaf's bytes."""
        leaf, left, state = self.leaves.leaves[index], self.leaves.leaves[index].size, hashlib.sha256()
        for piece in pieces:
            view = memoryview(piece).cast("B")
            left -= view.nbytes
            if left < 0:
                break
            state.update(view)
            yield view
        if left or not leaf.names(state.digest()):
            raise IntegrityError(
                "integrity.chunk",
                f"chunk {index} of artifact {self.artifact.short} is not the signed one",
                index=index,
                digest=leaf.digest,
                found=None if left else Digest(state.digest()),
            )

    def _count(self, digest: Digest, size: int) -> None:
        with self._landed_lock:
            self._landed[digest] = size
            if len(self._landed) < RECORD_EVERY:
                return
            batch, self._landed = self._landed, {}
        try:
            with self._parts.index.writing() as db:
                add_chunks(db, batch)
        except StoreError as error:
            # The chunks are safe; they are counted when the draft is left or found dead.
            _log.warning("progress of %s not counted yet: %s (%s)", self.artifact, error, error.code)

    def publish(self) -> StoredArtifact:
        """Make the artifact visible, durably, and end the draft.

        Raises:
            StoreError: `store.incomplete` while leaves are missing; `store.full`, `store.unwritable`.
        """
        with self._ending:
            return self._publish()

    def _publish(self) -> StoredArtifact:
        lock, parts = self._held(), self._parts
        sizes = parts.chunks.sizes(leaf.digest for leaf in self._wanted.values())
        missing = self._lacking(sizes)
        if missing:
            raise StoreError(
                "store.incomplete",
                f"{len(missing)} of {len(self._wanted)} chunks are missing",
                missing=len(missing),
            )
        parts.chunks.sync(sizes)
        with parts.index.writing() as db:
            add_chunks(db, sizes)  # leased, so that gc has left them where they are
            if parts.files.is_sound(self.artifact):
                parts.files.merge(self._envelope)
                if self._cost is not None:
                    with parts.files.open(self.artifact) as folder:
                        write_cost(parts.temp, folder, self._cost)
                held = parts.files.extent(self.artifact, self._manifest.layout)
                if held is not None:
                    parts.files.set_extent(self.artifact, held.merged(self.extent))
                parts.temp.discard_tree(self.artifact.hex, parts.folder(leases.PARTIAL))
            else:
                parts.files.discard(self.artifact)
                write_extent(parts.temp, lock.folder, self.extent)
                if self._cost is not None:
                    write_cost(parts.temp, lock.folder, self._cost)
                os.utime(LEAVES, dir_fd=lock.folder.fd, follow_symlinks=False)
                os.utime(TOKENS, dir_fd=lock.folder.fd, follow_symlinks=False)
                lock.folder.sync()
                parts.files.adopt(parts.folder(leases.PARTIAL), self.artifact)
                lock.folder.unlink(LOCK_NAME)
            stored = parts.files.load(self.artifact, pinned=parts.is_pinned(self.artifact))
            meta_bytes = parts.files.meta_bytes(self.artifact)
            records.put_artifact(db, stored, self.leaves, self._token_ids, meta_bytes)
            leases.release(db, leases.PARTIAL, self.artifact)
        lock.release()
        self._lock = None
        return stored

    def close(self) -> None:
        """Leave the draft; safe to call twice. Counts that cannot be written now are made up for later."""
        with self._ending:
            self._leave()

    def _leave(self) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            lock.mark_active()
            with leases.left_to_reconcile(self.artifact), self._parts.index.writing() as db:
                leases.settle(db, self._parts.chunks, leases.PARTIAL, self.artifact)
                if records.is_recorded(db, self.artifact) and not self.missing():
                    self._parts.temp.discard_tree(self.artifact.hex, self._parts.folder(leases.PARTIAL))
                    leases.release(db, leases.PARTIAL, self.artifact)
                else:
                    leases.close(db, self._parts.chunks, leases.PARTIAL, self.artifact)
        finally:
            lock.release()

    def _held(self) -> DraftLock:
        if self._lock is None:
            raise UsageError("store.draft_closed", "this draft was published or left")
        return self._lock

    def __enter__(self) -> PullDraft:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
