"""Opening a store: folders checked, index sound and of this version, or rebuilt from the files.

Two processes may open a store whose index is damaged at once: the file is replaced only by one that
alone has the store open, which an OS lock on the store's folder tells.
"""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Final

from kvsync.errors import StoreError
from kvsync.store import locks
from kvsync.store.artifacts import ArtifactFiles
from kvsync.store.attestations import AttestationFiles, RefutedFiles
from kvsync.store.chunks import ChunkFiles
from kvsync.store.divergences import DivergenceFiles
from kvsync.store.folder import Folder
from kvsync.store.index import SCHEMA_VERSION, Index
from kvsync.store.parts import INDEX, RESERVE, RESERVE_BYTES, Parts, open_folders
from kvsync.store.quota import StoreLimits
from kvsync.store.reconcile import rebuild, reconcile
from kvsync.store.refs import RefFiles
from kvsync.store.temp import TempFiles
from kvsync_protocol.errors import VersionError

REPLACE_WAIT_S: Final = 10.0
"""How long to wait for the others to let go of a damaged index."""
_log = logging.getLogger(__name__)


def open_parts(path: Path, limits: StoreLimits) -> Parts:
    """Raises as `Store.open`."""
    root, folders = open_folders(path)
    try:
        if root.free_bytes() < RESERVE_BYTES:
            root.unlink(RESERVE)  # the index's side files need room of their own
        index = _open_index(root)
        try:
            temp = TempFiles(folders["tmp"])
            files = ArtifactFiles(folders["artifacts"], temp)
            parts = Parts(
                root=root,
                folders=folders,
                temp=temp,
                chunks=ChunkFiles(folders["chunks"], temp, limits.free_floor_bytes),
                files=files,
                refs=RefFiles(folders["refs"], temp),
                attestations=AttestationFiles(files, temp),
                refuted=RefutedFiles(folders["refuted"], temp),
                divergences=DivergenceFiles(folders["divergences"], temp),
                limits=limits,
                index=index,
            )
            with parts.spending_reserve(), index.writing() as db:
                if db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION:
                    reconcile(db, parts)
                else:
                    if parts.files.ids():
                        _log.warning("the index of %s is new: filling it from the files", root.path)
                    rebuild(db, parts)
        except BaseException:
            index.close()
            raise
    except BaseException:
        for folder in (*folders.values(), root):
            folder.close()
        raise
    return parts


def _open_index(root: Folder) -> Index:
    """The index, made anew (empty) if it was damaged or of an older version.

    Raises:
        StoreError: `store.index_damaged`, `store.index_version` while other processes use it.
        VersionError: `version.index`.
    """
    deadline = time.monotonic() + REPLACE_WAIT_S
    while True:
        try:
            return _sound_index(root.path / INDEX)
        except StoreError as error:
            if error.code not in _REPLACEABLE:
                raise
            if locks.attempt(root.fd):
                try:
                    return _replaced_index(root)
                finally:
                    locks.wait(root.fd, None, INDEX, shared=True)
            if time.monotonic() > deadline:
                raise
        # The failed attempt has dropped the shared lock. Waiting without it, for times that differ, lets one
        # of several processes that all want to be alone be so.
        time.sleep(random.uniform(0.01, 0.1))  # noqa: S311
        locks.wait(root.fd, None, INDEX, shared=True)


def _replaced_index(root: Folder) -> Index:
    """The index, made anew by the only process that has the store open, unless another has just done so."""
    try:
        return _sound_index(root.path / INDEX)
    except StoreError as error:
        if error.code not in _REPLACEABLE:
            raise
        _log.warning("%s: it is made anew from the files (%s)", error, error.code)
    for end in ("", "-wal", "-shm"):
        root.unlink(INDEX + end)
    return _sound_index(root.path / INDEX)


_REPLACEABLE: Final = ("store.index_damaged", "store.index_version")


def _sound_index(path: Path) -> Index:
    index = Index(path)
    try:
        version = index.version()
        if version > SCHEMA_VERSION:
            raise VersionError(
                "version.index",
                f"{path} was written by a newer version of kvsync",
                hint="upgrade, or remove index.sqlite to have it rebuilt",
            )
        if 0 < version < SCHEMA_VERSION:
            raise StoreError(
                "store.index_version",
                f"{path} is of version {version}, not {SCHEMA_VERSION}",
                hint="stop the processes that use it; the next open rebuilds it",
            )
        index.check()
    except BaseException:
        index.close()
        raise
    return index
