"""`Folder`: one directory of the store, held open by descriptor, and what is done inside it.

Every name is a single component that the store made itself (a digest's hex digits, a fixed word or a
random temporary name) and is opened below the descriptor without following links, so neither a peer
nor a planted link can lead elsewhere. Knows nothing of chunks or artifacts.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvsync.errors import NotFoundError, StoreError
from kvsync.files import write_error
from kvsync_protocol.digest import Digest

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK: a planted pipe must not hang the opener; regular files do not care."""


class Folder:
    """An open directory that only this user may enter. Context manager."""

    def __init__(self, descriptor: int, path: Path) -> None:
        self.fd = descriptor
        self.path = path

    @classmethod
    def at(cls, path: Path) -> Folder:
        """Open the directory at `path`, made if absent, parents too.

        Raises:
            StoreError: `store.symlink`, `store.lax_mode`, `store.foreign`, `store.full`, `store.unwritable`.
        """
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError:
            pass  # opening it says what it is instead
        except OSError as error:
            raise write_error(error, path) from error
        return cls._checked(os.fspath(path), None, path)

    def child(self, name: str, *, create: bool = False) -> Folder:
        """Open a directory inside this one. Raises as `at`; NotFoundError `file.missing` without `create`."""
        if create:
            try:
                os.mkdir(name, 0o700, dir_fd=self.fd)
            except FileExistsError:
                pass
            except OSError as error:
                raise write_error(error, self.path / name) from error
        return self._checked(name, self.fd, self.path / name)

    @classmethod
    def _checked(cls, name: str, parent: int | None, path: Path) -> Folder:
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError as error:
            raise open_error(error, path) from error
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            os.close(descriptor)
            raise StoreError("store.lax_mode", f"{path} is open to other users", hint=f"chmod 700 {path}")
        return cls(descriptor, path)

    def names(self) -> list[str]:
        """Everything inside, in a stable order.

        Read through a descriptor of its own: threads that list by one descriptor share its position in the
        directory, and each gets a part of the names.
        """
        own = os.open(".", _DIRECTORY, dir_fd=self.fd)
        try:
            return sorted(os.listdir(own))  # noqa: PTH208  by descriptor
        finally:
            os.close(own)

    def digests(self) -> list[Digest]:
        """The folders inside that are named by a digest's hex digits; links and files are passed over."""
        own = os.open(".", _DIRECTORY, dir_fd=self.fd)
        try:
            with os.scandir(own) as entries:  # says what an entry is without asking for each one's status
                names = [e.name for e in entries if _DIGEST.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        finally:
            os.close(own)
        return [Digest(bytes.fromhex(name)) for name in sorted(names)]

    def status(self, name: str) -> os.stat_result | None:
        """The status of an entry itself, links not followed; None when there is none."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open_file(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of a regular file.

        Raises:
            NotFoundError: `file.missing`.
            StoreError: `store.symlink`, `store.foreign`, `store.lax_mode`, `store.full`, `store.unreadable`.
        """
        try:
            descriptor = os.open(name, flags | _FILE, 0o600, dir_fd=self.fd)
        except OSError as error:
            raise open_error(error, self.path / name) from error
        mode, path = os.fstat(descriptor).st_mode, self.path / name
        if stat.S_ISREG(mode) and not stat.S_IMODE(mode) & 0o077:
            return descriptor
        os.close(descriptor)
        if stat.S_ISREG(mode):
            raise StoreError("store.lax_mode", f"{path} is open to other users", hint="kvsync fsck tightens it")
        raise StoreError("store.foreign", f"{path} is not a regular file")

    def read(self, name: str, limit: int) -> bytes:
        """A whole file. Raises as `open_file`; StoreError `store.file_too_large` beyond `limit` bytes."""
        with os.fdopen(self.open_file(name), "rb") as file:
            data = file.read(min(limit, os.fstat(file.fileno()).st_size) + 1)  # what is asked for is allocated
        if len(data) > limit:
            raise StoreError("store.file_too_large", f"{self.path / name} is larger than {limit} bytes")
        return data

    def unlink(self, name: str) -> bool:
        """Remove a file; False when there is none."""
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return False
        return True

    def remove_tree(self, name: str) -> None:
        """Remove a file, a link itself, or a directory with all it holds; nothing when there is none."""
        try:
            self.unlink(name)
        except IsADirectoryError:
            try:
                with self.child(name) as inner:
                    for entry in inner.names():
                        inner.remove_tree(entry)
                os.rmdir(name, dir_fd=self.fd)
            except (FileNotFoundError, NotFoundError):
                return  # another process removes the same tree

    def move(self, name: str, into: Folder, new_name: str) -> None:
        """Rename an entry into another folder of the same file system."""
        os.rename(name, new_name, src_dir_fd=self.fd, dst_dir_fd=into.fd)

    def holds(self, name: str, descriptor: int) -> bool:
        """True when `name` here is still the very file or directory behind `descriptor`."""
        found, opened = self.status(name), os.fstat(descriptor)
        return found is not None and (found.st_dev, found.st_ino) == (opened.st_dev, opened.st_ino)

    def sync(self) -> None:
        """Make renames and unlinks inside durable."""
        os.fsync(self.fd)

    def free_bytes(self) -> int:
        """Space on this file system that a user may still fill."""
        status = os.fstatvfs(self.fd)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_error(error: OSError, path: Path) -> StoreError | NotFoundError:
    """The error of a failed open as the store names it."""
    if error.errno == errno.ENOENT:
        return NotFoundError("file.missing", f"{path} does not exist", path=str(path))
    if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
        return StoreError(
            "store.symlink", f"{path} is a link", hint="the store follows no links; remove it", path=str(path)
        )
    if error.errno in (errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
        return StoreError("store.foreign", f"{path} is not what belongs there", path=str(path))
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return write_error(error, path)
    return StoreError("store.unreadable", f"{path} cannot be opened: {error.strerror}", path=str(path))


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn an OSError of a write below `path` into `store.full` or `store.unwritable`."""
    try:
        yield
    except OSError as error:
        raise write_error(error, path) from error
