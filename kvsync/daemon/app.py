"""The daemon put together: every part's start stands beside its stop, and stops run in reverse.

    lock ─ queue ─ store ─ registry ─ peer listener ─ supervisor, transfers, network ─ local API ─ ready
                                                                  SIGTERM, SIGINT, /shutdown │
    lock ─ queue ─ store ─ registry ─ peer listener ─ supervisor, transfers, network ─ local API

Knows the parts, not their work.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from typing import Final

import kvsync
from kvsync.config import Home, Settings
from kvsync.daemon import endpoint
from kvsync.daemon.api import LocalApi
from kvsync.daemon.board import JobBoard
from kvsync.daemon.desk import ComputeDesk
from kvsync.daemon.embedded import EmbeddedRegistry
from kvsync.daemon.epoch import next_epoch
from kvsync.daemon.follower import Follower
from kvsync.daemon.hearsay import Hearsay
from kvsync.daemon.jobs import JobQueue
from kvsync.daemon.messages import Status
from kvsync.daemon.network import Network
from kvsync.daemon.pidlock import PidLock
from kvsync.daemon.supervisor import Supervisor
from kvsync.daemon.transfers import Transfers
from kvsync.errors import KvsyncError
from kvsync.keys import KeySpread, NodeKeys, PeerBook, RegistryBook, TrustList, split_address
from kvsync.library.desk import LibraryDesk
from kvsync.peer.introduction import listening_addresses
from kvsync.peer.lan import announced
from kvsync.peer.lane import Extension
from kvsync.peer.server import PeerServer
from kvsync.store import Store, StoreLimits
from kvsync_protocol.signing import PublicKey

EARLIEST_CLOCK: Final = 1_577_836_800
"""2020-01-01: a clock before that was never set."""

logger = logging.getLogger(__name__)


async def serve(home: Home, ready: Callable[[Status], None]) -> None:
    """Be the daemon of `home` until SIGTERM, SIGINT or a client's /shutdown; `ready` is called once all is up.

    Raises:
        StoreError: `home.*`, `keys.*`, `store.*`, `jobs.*`, `daemon.socket`.
        UsageError: `config.*`.
        UnavailableError: `daemon.already_running`, `peer.listen`.
    """
    home.require()
    home.create()  # checks that nobody else can look in
    settings, keys = Settings.load(home), NodeKeys.load(home)
    if time.time() < EARLIEST_CLOCK:
        logger.warning("the clock says it is before 2020; nothing depends on it, but times in lists are wrong")
    async with AsyncExitStack() as stack:
        stack.enter_context(closing(PidLock.take(home.pid_file)))
        queue = stack.enter_context(closing(JobQueue.open(home.jobs_file)))
        queue.recover()
        store = stack.enter_context(Store.open(home.store_dir, StoreLimits.of(settings)))
        trust = TrustList(home, keys.signer.public)
        embedded = EmbeddedRegistry.open(home, keys.peer.public) if settings.registry else None
        extensions: list[Extension] = []
        if embedded is not None:
            stack.enter_context(closing(embedded))
            extensions.append(embedded.mount)
        board = JobBoard(queue)
        desk = ComputeDesk(board, home, settings)
        server = PeerServer(store, keys, home, trust, settings, [*extensions, desk.mount, LibraryDesk(home).mount])
        desk.access = server.access
        address = await stack.enter_async_context(_listening(server))
        if settings.lan_discovery:
            await stack.enter_async_context(_announced(keys.peer.public, settings.listen_host, address))
        stopping = asyncio.Event()
        stack.enter_context(closing(_Signals(stopping.set)))
        supervisor = Supervisor(board, home)
        transfers = Transfers(board, store, keys, trust, PeerBook(home), settings)
        network = Network(
            home,
            store,
            keys,
            trust,
            settings,
            addresses=listening_addresses(settings.listen_host, split_address(address)[1]),
            epoch=next_epoch(home.daemon_dir / "epoch"),
            embedded=embedded,
        )
        hearsay = Hearsay(
            keys,
            KeySpread(home, trust),
            settings,
            PeerBook(home),
            RegistryBook(home),
            None if embedded is None else embedded.registry,
        )
        follower = Follower(home, board, store, trust, settings, hearsay)
        began = time.monotonic()

        def status() -> Status:
            return Status(
                pid=os.getpid(),
                version=kvsync.__version__,
                home=str(home.root),
                address=address,
                peer_key=str(keys.peer.public),
                worker=supervisor.state,
                worker_pid=supervisor.pid,
                uptime_s=int(time.monotonic() - began),
                jobs=queue.counts(),
                registries=network.states(),
                follows=follower.state(),
                unencrypted=settings.unencrypted_bulk_networks,
            )

        local = stack.enter_context(closing(endpoint.listen(home.socket)))
        stack.callback(endpoint.remove, home.socket)
        async with asyncio.TaskGroup() as group:
            work = [group.create_task(part.run()) for part in (supervisor, transfers, network, desk, follower)]
            async with LocalApi(board, status, stopping.set, owner=os.geteuid()).serve(local):
                logger.info("ready at %s, pid %d", address, os.getpid())
                ready(status())
                await stopping.wait()
                logger.info("stopping")
                board.close()
            for task in work:
                task.cancel()
    logger.info("stopped")


@asynccontextmanager
async def _listening(server: PeerServer) -> AsyncIterator[str]:
    """The peers' way in; yields its address as peers write it."""
    host, port = await server.start()
    try:
        yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    finally:
        await server.stop()


@asynccontextmanager
async def _announced(key: PublicKey, host: str, address: str) -> AsyncIterator[None]:
    """The local network knows of this node meanwhile; where it cannot be told, the daemon runs all the same."""
    addresses = listening_addresses(host, split_address(address)[1])
    telling = announced(key, addresses)
    try:
        await asyncio.to_thread(telling.__enter__)
    except KvsyncError as error:
        logger.warning("not announced in the local network: %s", error)
        yield
        return
    try:
        yield
    finally:
        await asyncio.to_thread(telling.__exit__, None, None, None)


class _Signals:
    """SIGTERM and SIGINT as an orderly end."""

    _NUMBERS: Final = (signal.SIGTERM, signal.SIGINT)

    def __init__(self, stop: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        for number in self._NUMBERS:
            self._loop.add_signal_handler(number, stop)

    def close(self) -> None:
        for number in self._NUMBERS:
            self._loop.remove_signal_handler(number)
