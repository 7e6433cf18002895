"""`kvsync-registry`: a registry of its own, for a home made by `kvsync init` whose peers are its members.

    kvsync-registry [--home DIR] [--listen HOST:PORT] [--database FILE.sqlite | postgresql://…]

Several of them over one PostgreSQL, with one home each that hold the same peers and the same key, are replicas: any
balancer that passes TCP on may stand before them.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kvsync.cli._render import Outcome, Terminal
from kvsync.config import Home
from kvsync.errors import StoreError, UnavailableError, UsageError
from kvsync.keys import NodeKeys, join_address, split_address
from kvsync.log import configure
from kvsync_protocol.errors import CodedError
from kvsync_registry.errors import FullError, RegistryError

if TYPE_CHECKING:
    from kvsync_registry.store import RegistryStore

DEFAULT_LISTEN = "127.0.0.1:7420"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit status (docs/reference.md, Exit statuses)."""
    given = _parser().parse_args(arguments)
    terminal = Terminal(as_json=given.json)
    configure()
    try:
        asyncio.run(_serve(given, terminal))
    except RegistryError as error:
        kind = StoreError if isinstance(error, FullError) else UnavailableError
        return terminal.error(kind(error.code, error.message, hint=error.hint))
    except CodedError as error:
        return terminal.error(error)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="kvsync-registry", description="Serve a registry: who has what, as hints.")
    parser.add_argument("--home", type=Path, help="its home, made by kvsync init; default as for kvsync")
    parser.add_argument("--listen", default=DEFAULT_LISTEN, metavar="HOST:PORT", help=f"default {DEFAULT_LISTEN}")
    parser.add_argument(
        "--database", default="", help="a file, or postgresql://…; default registry.sqlite in the home"
    )
    parser.add_argument("--json", action="store_true", help="say the address as one JSON object on stdout")
    return parser


async def _serve(given: argparse.Namespace, terminal: Terminal) -> None:
    """Raises StoreError `home.*`, `keys.*`; UsageError `registry.database`, `peer.address`; `registry.*`."""
    from kvsync.peer.identity import peer_key
    from kvsync.peer.registry_members import RosterMembers
    from kvsync.peer.roster import Roster
    from kvsync_protocol.routes import CONTROL_ALPN
    from kvsync_registry.app import RegistryServer
    from kvsync_registry.service import Registry

    home = Home.locate(given.home)
    roster = Roster(NodeKeys.load(home))
    host, port = split_address(given.listen) if not given.listen.endswith(":0") else (given.listen[:-2], 0)
    members = RosterMembers(roster)
    store = await asyncio.to_thread(_open, home, given.database)
    try:
        server = RegistryServer(
            Registry(store, members),
            members,
            context=lambda: roster.context(CONTROL_ALPN),
            identify=peer_key,
            host=host,
            port=port,
        )
        stopping = asyncio.Event()
        for name in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(name, stopping.set)
        bound, number = await server.start()
        try:
            address, key = join_address(bound, number), str(roster.identity().public)
            terminal.show(Outcome({"address": address, "key": key}, [f"registry {key} at {address}"]))
            sys.stdout.flush()
            await stopping.wait()
        finally:
            await server.stop()
    finally:
        store.close()


def _open(home: Home, database: str) -> RegistryStore:
    if database.startswith(("postgresql://", "postgres://", "host=")):
        try:
            from kvsync_registry.postgres import PostgresRegistryStore
        except ImportError as error:
            raise UsageError(
                "registry.database",
                "this installation has no PostgreSQL client",
                hint="pip install 'kvsync[postgres]'",
            ) from error
        return PostgresRegistryStore(database)
    from kvsync_registry.sqlite import SqliteRegistryStore

    return SqliteRegistryStore(Path(database) if database else home.root / "registry.sqlite")
