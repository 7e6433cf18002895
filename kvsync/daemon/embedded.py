"""The registry that a daemon embeds: who of its peers has what, answered on the peer port, kept in the home.

Its members are the home's peers, and this node itself. What it keeps are hints: a damaged file is put aside and the
next announcements fill a new one; one that cannot be opened leaves the daemon without a registry, and says so.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from aiohttp import web

from kvsync.config import Home
from kvsync.peer.lane import Lane
from kvsync.peer.registry_members import RosterMembers
from kvsync.peer.roster import Roster
from kvsync_protocol.signing import PublicKey
from kvsync_registry import handlers
from kvsync_registry.errors import RegistryError
from kvsync_registry.member import Member
from kvsync_registry.service import Registry
from kvsync_registry.sqlite import SqliteRegistryStore

THREADS: Final = 4
_KEPT: Final = ("registry.busy", "registry.disk", "registry.lax_mode", "registry.schema_newer")
"""Reasons why a file cannot be used that a new file would not mend."""

logger = logging.getLogger(__name__)


class EmbeddedRegistry:
    """Mounted on a control lane; `close` comes after the lane has stopped. Unmounted it answers this node alone."""

    def __init__(self, store: SqliteRegistryStore, own: PublicKey) -> None:
        self._own = own
        self._roster: Roster | None = None
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="kvsync-registry")
        self.registry = Registry(store, self)

    @classmethod
    def open(cls, home: Home, own: PublicKey) -> EmbeddedRegistry | None:
        """None where there can be none now; the log says why."""
        try:
            return cls(_opened(home.registry_file), own)
        except (RegistryError, OSError, sqlite3.DatabaseError) as error:
            logger.error("no registry is embedded: %s", error)
            return None

    def find(self, key: PublicKey) -> Member | None:
        """Whoever this node's peers are, and the node itself."""
        if key == self._own or (self._roster is not None and key == self._roster.identity().public):
            return Member(key, publish=True)
        return None if self._roster is None else RosterMembers(self._roster).find(key)

    def mount(self, app: web.Application, lane: Lane) -> None:
        self._roster = lane.roster
        handlers.mount(app, self.registry, lane.key, self._executor)

    async def sweep(self) -> None:
        """Remove what no longer counts, now and then, until cancelled."""
        while True:
            await asyncio.sleep(self.registry.limits.sweep_every_s)
            try:
                await asyncio.get_running_loop().run_in_executor(self._executor, self.registry.sweep)
            except RegistryError as error:
                logger.warning("the registry was not swept: %s", error)

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)
        self.registry.store.close()


def _opened(path: Path) -> SqliteRegistryStore:
    """Raises RegistryError."""
    try:
        return SqliteRegistryStore(path)
    except (RegistryError, sqlite3.DatabaseError) as error:
        if (isinstance(error, RegistryError) and error.code in _KEPT) or not path.is_file():
            raise
        logger.error("%s is put aside, a new one is begun: %s", path, error)
    for end in ("-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)
    path.replace(path.with_name(path.name + ".damaged"))
    return SqliteRegistryStore(path)
