"""Small files written so that a reader sees the old content or the new, and no other user reads them."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from kvsync.errors import NotFoundError, StoreError

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def make_private_dir(path: Path) -> Path:
    """Create `path` (and parents) for this user alone, or check that it is so.

    Raises:
        StoreError: `home.unwritable`, `home.lax_mode`, `store.full`.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = path.stat()
    except OSError as error:
        if error.errno in _FULL:
            raise write_error(error, path) from error
        raise StoreError(
            "home.unwritable", f"{path} cannot be used: {error.strerror}", hint="check owner and mode"
        ) from error
    if mode.st_uid != os.geteuid() or stat.S_IMODE(mode.st_mode) & 0o077:
        raise StoreError("home.lax_mode", f"{path} is open to other users", hint=f"chmod 700 {path}")
    return path


def make_private_file(path: Path) -> os.stat_result:
    """Make an empty file for this user alone, if there is none; its status.

    It is never opened: closing any descriptor of a file drops all POSIX locks that the process has on it. With those
    of SQLite gone, the next process that closes the database takes the log away in which this one writes.

    Raises:
        OSError: also for a link, and for anything else that is no regular file.
    """
    with suppress(FileExistsError):
        os.mknod(path, stat.S_IFREG | 0o600)
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        code = errno.ELOOP if stat.S_ISLNK(status.st_mode) else errno.ENXIO
        raise OSError(code, os.strerror(code), str(path))
    return status


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace `path` by `data`. Raises as `replacing`."""
    with replacing(path, mode=mode) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, *, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A new content for `path`: temporary file, fsync, rename, fsync of the directory, when the block ends well.

    Raises:
        StoreError: `store.full` or `store.unwritable`; the old content, or none, is still there.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.rename(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_dir(path.parent)
    except OSError as error:
        raise write_error(error, path) from error


def write_error(error: OSError, path: Path) -> StoreError:
    """The error of a failed write as kvsync names it."""
    if error.errno in _FULL:
        return StoreError(
            "store.full", f"no space left for {path}", hint="kvsync gc, kvsync rm, or a larger disk", path=str(path)
        )
    return StoreError("store.unwritable", f"{path} cannot be written: {error.strerror}", path=str(path))


def no_room(path: Path) -> bool:
    """Whether the disk of `path` is full, in bytes or in files: what SQLite then reports is a plain I/O error."""
    status = os.statvfs(path.parent)
    return status.f_bavail * status.f_frsize < 1 << 20 or (status.f_files > 0 and status.f_favail < 4)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the OS lock of `path`, an empty file, so that read-change-write of its neighbours is one step.

    Waits for another holder. The kernel drops the lock of a process that dies, so none is ever stale.

    Raises:
        StoreError: `store.full` or `store.unwritable`.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise write_error(error, path) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sync_dir(path: Path) -> None:
    """Make renames and unlinks in `path` durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_limited(path: Path, limit: int, *, what: str, lax_code: str = "") -> bytes:
    """Read a regular file of at most `limit` bytes, not through a link.

    With `lax_code`, a file that is another user's or that others may touch is refused under that code.

    Raises:
        NotFoundError: `file.missing`.
        StoreError: `file.unreadable`, `file.too_large`, or `lax_code`.
    """
    try:
        # O_NONBLOCK: a pipe in the file's place must not hang the opener; regular files do not care.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise StoreError("file.unreadable", f"{what} {path} is not a regular file")
            if lax_code and (status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077):
                raise StoreError(lax_code, f"{path} can be read by other users", hint=f"chmod 600 {path}")
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                data = file.read(min(limit, status.st_size) + 1)  # what is asked for is allocated
                if len(data) > status.st_size:  # it has grown, or is of those whose size nobody knows
                    data += file.read(limit + 1 - len(data))
        finally:
            os.close(descriptor)
    except FileNotFoundError as error:
        raise NotFoundError("file.missing", f"{what} {path} does not exist") from error
    except OSError as error:
        raise StoreError("file.unreadable", f"{what} {path} cannot be read: {error.strerror}") from error
    if len(data) > limit:
        raise StoreError("file.too_large", f"{what} {path} is larger than {limit} bytes")
    return data
