"""The local API's address: a unix socket in the home's private daemon directory.

A socket's name has at most 107 bytes while a home may lie deeper; such a socket is named through a
descriptor of its directory, so that no second place (a shared /tmp) is ever needed.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kvsync.errors import StoreError, UnavailableError

MAX_NAME_BYTES: Final = 107
BACKLOG: Final = 64


@contextmanager
def _short_name(path: Path) -> Iterator[str]:
    if len(os.fsencode(path)) <= MAX_NAME_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def listen(path: Path) -> socket.socket:
    """A listening socket for this user alone. What an earlier daemon left is replaced: the caller holds the lock.

    Raises:
        StoreError: `daemon.socket`.
    """
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        remove(path)
        with _short_name(path) as name:
            server.bind(name)
        path.chmod(0o600)  # nobody can connect before listen()
        server.listen(BACKLOG)
        server.setblocking(False)
    except OSError as error:
        server.close()
        raise StoreError("daemon.socket", f"{path} cannot be made: {error.strerror}", path=str(path)) from error
    except BaseException:
        server.close()
        raise
    return server


def connect(path: Path, timeout_s: float) -> socket.socket:
    """A connection to the daemon.

    Raises:
        UnavailableError: `daemon.not_running` when nobody listens there.
        StoreError: `home.unreadable` when this user may not look.
    """
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(timeout_s)
    try:
        with _short_name(path) as name:
            client.connect(name)
    except PermissionError as error:
        client.close()
        raise StoreError("home.unreadable", f"{path} belongs to another user", hint="check the home") from error
    except OSError as error:
        client.close()
        raise UnavailableError("daemon.not_running", "no daemon runs here", hint="kvsync daemon start") from error
    return client


def remove(path: Path) -> None:
    """Unlink a socket, and nothing else. Raises StoreError `daemon.socket`."""
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()
        else:
            raise StoreError("daemon.socket", f"{path} is in the way", hint="remove it", path=str(path))
    except FileNotFoundError:
        return


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end, by the kernel's word at connect time."""
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)
