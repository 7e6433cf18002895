"""A look at every name in the store's tree: links, foreign files, open modes. Reads no content.

Nothing is followed: entries are examined by `lstat` below descriptors.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.folder import Folder
from kvsync.store.journal import JOURNAL
from kvsync.store.locks import LOCK_NAME
from kvsync.store.parts import FOLDERS, INDEX, RESERVE, Parts
from kvsync.store.stored import ATTESTATIONS, COST, ENVELOPE, EXTENT, LEAVES, TOKENS

_HEX: Final = r"[0-9a-f]{64}"
_META: Final = f"{_HEX}/({ENVELOPE}|{LEAVES}|{TOKENS}|{EXTENT}|{COST}|{LOCK_NAME})"
_FILES: Final = re.compile(
    rf"{INDEX}(-wal|-shm)?|{RESERVE}|chunks/([0-9a-f]{{2}})/\2[0-9a-f]{{62}}|artifacts/{_META}|partial/{_META}"
    rf"|compute/{_HEX}/({JOURNAL}|{LOCK_NAME})|refs/{_HEX}\.json|pins/{_HEX}|tmp/.+"
    rf"|artifacts/{_HEX}/{ATTESTATIONS}/{_HEX}\.json|(refuted|divergences)/{_HEX}\.json",
    re.ASCII,
)
_DIRECTORIES: Final = re.compile(
    rf"{'|'.join(FOLDERS)}|chunks/[0-9a-f]{{2}}|(artifacts|partial|compute)/{_HEX}|artifacts/{_HEX}/{ATTESTATIONS}"
    r"|tmp/.+",
    re.ASCII,
)


@dataclass(frozen=True, slots=True)
class Stray:
    """An entry that should not be, or not so. `code` is that of the error its use would raise."""

    code: str
    path: str
    """Relative to the store."""
    detail: str
    handled: bool = False
    """Nothing is left to do: its mode was tightened, or it was moved to quarantine."""


def stray_files(parts: Parts) -> Iterator[Stray]:
    """Everything in the tree that is a link, of a wrong kind or name, or open to other users.

    Modes are tightened as they are found: whether the content is still right, its digest says. What
    stands where something of the store's belongs is moved to quarantine; anything else is left alone.
    """
    yield from _walk(parts, parts.root, "")


def _walk(parts: Parts, folder: Folder, prefix: str) -> Iterator[Stray]:
    for name in folder.names():
        path, status = prefix + name, folder.status(name)
        if status is None:
            continue  # gone meanwhile
        if stat.S_ISLNK(status.st_mode):
            yield Stray(
                "store.symlink", path, "a link, which the store never follows", _displace(parts, folder, path)
            )
        elif stat.S_ISDIR(status.st_mode) and _DIRECTORIES.fullmatch(path):
            if _tighten(folder, name, status, 0o700):
                yield Stray("store.lax_mode", path, "the folder was open to other users", handled=True)
            if path == "quarantine":
                continue  # what is set aside is as bad as it was
            try:
                with folder.child(name) as inner:
                    yield from _walk(parts, inner, path + "/")
            except NotFoundError:
                continue
            except StoreError as error:
                yield Stray(error.code, path, error.message)
        elif stat.S_ISREG(status.st_mode) and _FILES.fullmatch(path):
            if _tighten(folder, name, status, 0o600):
                yield Stray("store.lax_mode", path, "the file was open to other users", handled=True)
        else:
            handled = _displace(parts, folder, path)
            yield Stray("store.foreign", path, "nothing of the store's has this name and kind", handled)


def _displace(parts: Parts, folder: Folder, path: str) -> bool:
    """Clear a place that the store uses itself."""
    if not (_FILES.fullmatch(path) or _DIRECTORIES.fullmatch(path)):
        return False
    name = path.rpartition("/")[2]
    folder.move(name, parts.folder("quarantine"), f"{name}.{secrets.token_hex(4)}")
    return True


def _tighten(folder: Folder, name: str, status: os.stat_result, mode: int) -> bool:
    if not stat.S_IMODE(status.st_mode) & 0o077:
        return False
    try:
        # By O_PATH, since closing a real descriptor of the index would drop the locks of this process on it.
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder.fd)
    except FileNotFoundError:
        return False
    try:
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)
    return True
