"""OS locks (flock): who is alive is asked of the kernel, never of a clock or a pid file.

A lock belongs to an open file description, so it also holds between threads of one process, and the
kernel drops it however its holder ends. Knows folders, not what they hold.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import Final

from kvsync.errors import NotFoundError, StoreError, UnavailableError
from kvsync.store.folder import Folder

LOCK_NAME: Final = "lock"
_FIRST_PAUSE_S: Final = 0.005
_LONGEST_PAUSE_S: Final = 0.1


def attempt(descriptor: int, *, shared: bool = False) -> bool:
    """Lock without waiting; False when another holds it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait(descriptor: int, deadline: float | None, what: str, *, shared: bool = False) -> None:
    """Lock, waiting until `deadline` (a `time.monotonic()` value; None waits for ever).

    Raises:
        UnavailableError: `store.busy`.
    """
    pause = _FIRST_PAUSE_S
    while not attempt(descriptor, shared=shared):
        left = _LONGEST_PAUSE_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise UnavailableError("store.busy", f"{what} is in use by another transfer", hint="try again later")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


class DraftLock:
    """Exclusive hold on the directory of one draft, by its file `lock`."""

    def __init__(self, folder: Folder, descriptor: int) -> None:
        self.folder = folder
        self._fd = descriptor

    @classmethod
    def acquire(cls, parent: Folder, name: str, deadline: float | None) -> DraftLock:
        """Make the directory if need be and wait for its lock. Raises UnavailableError `store.busy`."""
        while True:
            held = cls._open(parent, name, create=True)
            if held is None:
                continue  # removed between making and opening it
            try:
                wait(held._fd, deadline, f"{parent.path.name}/{name[:12]}")
            except UnavailableError:
                held.release()
                raise
            if held._current(parent, name):
                os.utime(held._fd)
                return held
            held.release()  # its holder published or removed it while we waited

    @classmethod
    def attempt(cls, parent: Folder, name: str) -> DraftLock | None:
        """The lock of an existing directory, or None when somebody holds it or it is gone.

        None as well for one that a killed process left without its lock's file, while there is no room for that.
        """
        try:
            held = cls._open(parent, name, create=False)
        except StoreError as error:
            if error.code != "store.full":
                raise
            return None
        if held is None:
            return None
        if attempt(held._fd) and held._current(parent, name):
            return held
        held.release()
        return None

    @classmethod
    def _open(cls, parent: Folder, name: str, *, create: bool) -> DraftLock | None:
        try:
            folder = parent.child(name, create=create)
        except NotFoundError:
            return None
        try:
            return cls(folder, folder.open_file(LOCK_NAME, os.O_RDWR | os.O_CREAT))
        except NotFoundError:  # the directory was removed under us
            folder.close()
            return None
        except BaseException:
            folder.close()
            if create:
                with suppress(OSError):  # not empty: somebody's draft
                    os.rmdir(name, dir_fd=parent.fd)
            raise

    def _current(self, parent: Folder, name: str) -> bool:
        return parent.holds(name, self.folder.fd) and self.folder.holds(LOCK_NAME, self._fd)

    @property
    def last_active(self) -> float:
        """When a draft here was last opened or left, seconds of the epoch."""
        return os.fstat(self._fd).st_mtime

    def mark_active(self) -> None:
        os.utime(self._fd)

    def release(self) -> None:
        """Let go; the directory stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self.folder.close()
