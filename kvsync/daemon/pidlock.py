"""The lock that makes a daemon the only one of its home, and says which process that is.

An fcntl record lock on `<home>/daemon/pid`: the kernel drops it with the process that holds it, however that
ends, and names its holder. So a stale file means nothing, and a signal goes to the process that holds the
lock and to no other that happens to have a recorded number. The number in the file is for people.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from pathlib import Path
from typing import Final, Self

from kvsync.errors import UnavailableError
from kvsync.files import write_error

_FLOCK: Final = "hhqqi0q"
"""struct flock with 64-bit offsets: type, whence, start, length, pid."""


class PidLock:
    """Held from `take` to `close`. The process must not open the file a second time meanwhile."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def take(cls, path: Path) -> Self:
        """Become the daemon of this home.

        Raises:
            UnavailableError: `daemon.already_running`.
            StoreError: `store.unwritable`, `store.full`.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise write_error(error, path) from error
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except (BlockingIOError, PermissionError) as error:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise UnavailableError(
                "daemon.already_running",
                f"a daemon already runs here with pid {holder or 'unknown'}",
                hint="kvsync daemon status",
            ) from error
        except OSError as error:
            os.close(descriptor)
            raise write_error(error, path) from error
        return cls(descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


class Holder:
    """The process that holds a home's lock, pinned so that its number cannot come to mean another. Close it."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @classmethod
    def find(cls, path: Path) -> Self | None:
        """None when nobody holds the lock."""
        while True:
            pid = _holder_of(path)
            if pid is None:
                return None
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue  # ended in between: somebody else holds it now, or nobody
            if _holder_of(path) == pid:
                return cls(pid, descriptor)
            os.close(descriptor)

    def terminate(self) -> None:
        """SIGTERM; nothing when it has ended already."""
        try:
            signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)
        except ProcessLookupError:
            return

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; False when it still runs."""
        poller = select.poll()
        poller.register(self._descriptor, select.POLLIN)
        return bool(poller.poll(max(0.0, timeout_s) * 1000))

    def close(self) -> None:
        os.close(self._descriptor)


def _holder_of(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        return _holder(descriptor)
    finally:
        os.close(descriptor)


def _holder(descriptor: int) -> int | None:
    """Whose lock is in the way of ours; the caller's own is not."""
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return int(pid) if kind != fcntl.F_UNLCK and pid > 0 else None
