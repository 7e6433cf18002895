"""The parts of an open store: its folders, held by descriptor, and what works on them.

    Store ─► PullDraft, ComputeDraft, gc, fsck, refs … ─► Parts ─► folders, index

Knows how a store is laid out, nothing of what is done with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.artifacts import ArtifactFiles, is_damage
from kvsync.store.attestations import AttestationFiles, RefutedFiles
from kvsync.store.chunks import ChunkFiles
from kvsync.store.divergences import DivergenceFiles
from kvsync.store.folder import Folder
from kvsync.store.index import Index
from kvsync.store.quota import StoreLimits
from kvsync.store.refs import RefFiles
from kvsync.store.stored import StoredArtifact
from kvsync.store.temp import TempFiles
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.leaves import LeafTable

INDEX: Final = "index.sqlite"
RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 512 * 1024
"""Given up while gc and the like run on a full disk, so that the index can be written."""
FOLDERS: Final = (
    *("chunks", "artifacts", "partial", "compute", "refs", "pins"),
    *("refuted", "divergences", "tmp", "quarantine"),
)


@dataclass
class Parts:
    """Everything an open store is made of."""

    root: Folder
    folders: dict[str, Folder]
    temp: TempFiles
    chunks: ChunkFiles
    files: ArtifactFiles
    refs: RefFiles
    attestations: AttestationFiles
    refuted: RefutedFiles
    divergences: DivergenceFiles
    limits: StoreLimits
    index: Index
    tables: WeakValueDictionary[ArtifactId, LeafTable] = field(default_factory=WeakValueDictionary)
    """Checked leaf tables that somebody uses now: an artifact's never changes, and all who serve it share one."""

    def folder(self, name: str) -> Folder:
        return self.folders[name]

    def is_pinned(self, artifact: ArtifactId) -> bool:
        return self.folders["pins"].status(artifact.hex) is not None

    def sound(self, artifacts: Iterable[ArtifactId]) -> Iterator[StoredArtifact]:
        """Those that are here with a sound envelope; the others are left to fsck."""
        for artifact in artifacts:
            try:
                yield self.files.load(artifact, pinned=self.is_pinned(artifact))
            except NotFoundError:
                continue  # removed meanwhile
            except (ProtocolError, StoreError) as error:
                if not is_damage(error):
                    raise

    def whole(self, artifact: ArtifactId) -> StoredArtifact | None:
        """An artifact with sound files and every chunk of its extent in its full size, or None; no chunk is read."""
        try:
            stored, table, _tokens = self.files.verify(artifact)
        except NotFoundError:
            return None
        except (ProtocolError, StoreError) as error:
            if not is_damage(error):
                raise
            return None
        return None if self.lacking(stored, table) else stored

    def lacking(self, stored: StoredArtifact, table: LeafTable) -> list[int]:
        """Leaves that are kept here and whose chunk is not, or not in its full size."""
        kept = range(len(table.leaves)) if stored.extent is None else [span.index for span in stored.extent.spans()]
        sizes = self.chunks.sizes(table.leaves[index].digest for index in kept)
        return [i for i in kept if sizes.get(table.leaves[i].digest) != table.leaves[i].size]

    @contextmanager
    def spending_reserve(self) -> Iterator[None]:
        """On a full disk, let the index use the space set aside for it, and set it aside again afterwards."""
        if self.root.free_bytes() < RESERVE_BYTES:
            self.root.unlink(RESERVE)
        try:
            yield
        finally:
            if self.root.free_bytes() < RESERVE_BYTES:
                self.index.empty_log()  # it lies where the reserve was, and the next one needs that again
            if self.root.status(RESERVE) is None:
                take_reserve(self.root)

    def close(self) -> None:
        self.index.close()
        for folder in (*self.folders.values(), self.root):
            folder.close()


def open_folders(path: Path) -> tuple[Folder, dict[str, Folder]]:
    """Open a store's folders, made where absent, and say by a shared lock that it is in use.

    Raises:
        StoreError: `store.symlink`, `store.lax_mode`, `store.foreign`, `store.full`, `store.unwritable`.
    """
    root = Folder.at(path)
    folders: dict[str, Folder] = {}
    try:
        for name in FOLDERS:
            folders[name] = root.child(name, create=True)
        fcntl.flock(root.fd, fcntl.LOCK_SH)
    except BaseException:
        for folder in (*folders.values(), root):
            folder.close()
        raise
    return root, folders


def take_reserve(root: Folder) -> None:
    """Set space aside for the index, if there is any to set aside."""
    descriptor = root.open_file(RESERVE, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, RESERVE_BYTES)
    except OSError:
        root.unlink(RESERVE)  # no room for it now; whoever frees some takes it again
    finally:
        os.close(descriptor)
