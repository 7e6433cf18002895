"""Files that nobody sees until they are whole: written in tmp/, synced, then renamed into place.

A writer holds an OS lock on its temporary file; one without a holder is what a killed process left,
and `sweep` removes it.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable

from kvsync.store import locks
from kvsync.store.folder import Folder, reported


class TempFiles:
    """The tmp/ folder of a store. Thread-safe: it holds no state."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def publish(self, data: bytes, into: Folder, name: str) -> None:
        """Make `data` the content of `into`/`name`, replacing a file of that name. Raises as `publish_pieces`."""
        self.publish_pieces((memoryview(data),), into, name)

    def publish_pieces(self, pieces: Iterable[memoryview], into: Folder, name: str, size: int = 0) -> None:
        """Make all `pieces`, written as they come, the content of `into`/`name`.

        `size` is how many bytes they are, where that is known: a file that has its length takes a tenth less to fill.

        The bytes are on disk before the name is; the caller syncs `into` when the name must be too. What
        `pieces` raises passes through, and then nothing was changed either.

        Raises:
            StoreError: `store.full`, `store.unwritable`; nothing was changed.
        """
        temporary, descriptor = self._create()
        try:
            with reported(into.path / name):
                try:
                    if size:
                        os.ftruncate(descriptor, size)
                    for view in pieces:
                        while view.nbytes:
                            view = view[os.write(descriptor, view) :]
                    os.fdatasync(descriptor)
                    self._folder.move(temporary, into, name)
                except BaseException:
                    self._folder.unlink(temporary)
                    raise
        finally:
            os.close(descriptor)

    def _create(self) -> tuple[str, int]:
        while True:
            name = secrets.token_hex(12)
            descriptor = self._folder.open_file(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            # A sweeper may have come between creating and locking; then the name is gone.
            if locks.attempt(descriptor) and os.fstat(descriptor).st_nlink:
                return name, descriptor
            os.close(descriptor)
            self._folder.unlink(name)

    def discard_tree(self, name: str, source: Folder) -> None:
        """Take a directory out of `source` in one step, then delete it at leisure."""
        try:
            hidden = secrets.token_hex(12)
            source.move(name, self._folder, hidden)
        except FileNotFoundError:
            return
        except OSError:
            source.remove_tree(name)  # on a full disk even a rename may find no room; unlinking does
            return
        self._folder.remove_tree(hidden)

    def sweep(self, *, dry_run: bool = False) -> int:
        """Remove what no process writes any more; how many."""
        return sum(self._sweep(name, dry_run) for name in self._folder.names())

    def _sweep(self, name: str, dry_run: bool) -> bool:
        status = self._folder.status(name)
        if status is None:
            return False
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
            if not dry_run:
                self._folder.unlink(name)  # a link or pipe somebody planted
            return True
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder.fd)
        except FileNotFoundError:
            return False
        try:
            if not locks.attempt(descriptor):
                return False
            if not dry_run:
                self._folder.remove_tree(name)  # under its lock: a writer that comes late sees it gone
            return True
        finally:
            os.close(descriptor)
