"""`PeerServer`: everything a node offers to other nodes, behind one port.

    accept ─► ALPN ─┬─ http/1.1      ─► event loop, aiohttp: control lane
                    ├─ kvsync-bulk/1 ─► a thread: bulk lane
                    ├─ kvsync-bulk-unencrypted/1 ─► the same, out of TLS after the handshake, for listed networks
                    └─ kvsync-join/1 ─► a thread: join lane, while a ticket is out

Starts and stops; the daemon embeds it, tests run it alone. What a request means stands in the lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from aiohttp import web

from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, TrustList
from kvsync.networks import Networks
from kvsync.peer.access import Access
from kvsync.peer.bulk_server import BulkLane
from kvsync.peer.connections import Connection, ConnectionTable
from kvsync.peer.control import ControlLane
from kvsync.peer.control_connection import ControlConnection
from kvsync.peer.introduction import introduce
from kvsync.peer.join_server import JoinLane
from kvsync.peer.lane import Extension
from kvsync.peer.listener import HANDSHAKE_S, Listener
from kvsync.peer.offers import Offers
from kvsync.peer.roster import Roster
from kvsync.store import Store
from kvsync_protocol import bulk, join, unencrypted
from kvsync_protocol.errors import CodedError
from kvsync_protocol.join import Introduction
from kvsync_protocol.routes import CONTROL_ALPN

TICK_S: Final = 0.25
"""How often removed peers, idle connections and stale offers are looked for."""
DRAIN_S: Final = 10.0
"""Longest time that a stop waits for requests in hand."""

log = logging.getLogger(__name__)


class PeerServer:
    """One node's server. `start` and `stop` belong to one event loop and are called once each."""

    control_type: type[ControlLane] = ControlLane
    bulk_type: type[BulkLane] = BulkLane

    def __init__(
        self,
        store: Store,
        keys: NodeKeys,
        home: Home,
        trust: TrustList,
        settings: Settings,
        extensions: Sequence[Extension] = (),
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._table = ConnectionTable(settings.max_connections)
        self._offers = Offers()
        self._roster = Roster(keys)
        self.access = access = Access(store, self._roster, home.store_dir / "refs")
        self._reading = ThreadPoolExecutor(4, thread_name_prefix="kvsync-control")
        self._writing = ThreadPoolExecutor(4, thread_name_prefix="kvsync-control-writing")
        self._callers: dict[asyncio.BaseTransport, Connection] = {}
        self.control = self.control_type(
            store,
            self._offers,
            self._roster,
            trust,
            settings,
            signer=keys.signer.public,
            access=access,
            reading=self._reading,
            writing=self._writing,
            caller=self._caller,
            extensions=extensions,
        )
        self._join = JoinLane(keys, self._roster, trust, self._table, settings, partial(self._introduce, store))
        self.bulk = self.bulk_type(store, self._offers, self._roster, access, self._table, settings)
        self._runner = web.AppRunner(
            self.control.application(),
            handle_signals=False,
            access_log=None,
            auto_decompress=False,  # bodies are what the routes say; nothing is unpacked
            keepalive_timeout=settings.stall_timeout_s,
            lingering_time=1.0,
            shutdown_timeout=1.0,
        )
        self._clear = Networks(settings.unencrypted_bulk_networks)
        self._listener: Listener | None = None
        self._upkeep: asyncio.Task[None] | None = None
        self._stopped = False

    async def start(self) -> tuple[str, int]:
        """Listen; returns host and port.

        Raises:
            UnavailableError: `peer.listen`.
        """
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        listener = Listener(
            self._settings.listen_host,
            self._settings.listen_port,
            {
                CONTROL_ALPN.encode(): partial(self._hand_over, loop),
                bulk.ALPN.encode(): self.bulk,
                join.ALPN.encode(): self._join,
                unencrypted.ALPN.encode(): self.bulk.unencrypted,
            },
            closed={unencrypted.ALPN.encode(): lambda host: not self._clear.hold(host)},
            admit=self._table.admit,
            release=self._table.release,
            handshake_s=min(HANDSHAKE_S, self._settings.stall_timeout_s),
        )
        self._listener = listener
        listener.start()
        self._upkeep = asyncio.create_task(self._keep_up(), name="kvsync-peer-upkeep")
        log.info("listening at %s port %d", *listener.address)
        if self._clear:
            log.warning("chunks may go UNENCRYPTED to and from %s", self._clear)
        return listener.address

    async def stop(self) -> None:
        """Accept no more, finish the requests in hand, close, let go of open offers. Safe to call twice."""
        if self._stopped:
            return
        self._stopped = True
        if self._listener is not None:
            await asyncio.to_thread(self._listener.stop)
            self._table.drain()
            self.bulk.drain()
            if not await asyncio.to_thread(self._table.wait_empty, DRAIN_S):
                self._table.abort_all()
                await asyncio.to_thread(self._table.wait_empty, DRAIN_S)
        if self._upkeep is not None:
            self._upkeep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._upkeep
        await self._runner.cleanup()
        await asyncio.to_thread(self._offers.end_all)
        for pool in (self._reading, self._writing):
            pool.shutdown(wait=False, cancel_futures=True)
        self.bulk.close()

    @property
    def connections(self) -> int:
        """Open connections, those before their handshake included."""
        return self._table.count()

    @property
    def offers(self) -> int:
        """Pushes of other peers that are under way here."""
        return self._offers.count()

    # control connections: accepted in a thread, served in the loop

    def _hand_over(self, loop: asyncio.AbstractEventLoop, connection: socket.socket) -> None:
        asyncio.run_coroutine_threadsafe(self._adopt(connection), loop)

    async def _adopt(self, connection: socket.socket) -> None:
        """Handshake; on success the protocol has entered the connection into the table."""
        connection.setblocking(False)
        server = self._runner.server
        if server is None:
            raise RuntimeError("a connection before the runner was set up")
        protocol = ControlConnection(server, self._table, self._roster, self._callers)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._roster.context(CONTROL_ALPN),
                ssl_handshake_timeout=min(HANDSHAKE_S, self._settings.stall_timeout_s),
                ssl_shutdown_timeout=0.5,
            )
        except OSError as error:
            log.info("no control session: %s", error)
            connection.close()
        finally:
            if not protocol.entered:
                self._table.release()

    async def _keep_up(self) -> None:
        idle_s = 2.0 * self._settings.stall_timeout_s
        while True:
            await asyncio.sleep(TICK_S)
            if self._table.count():  # a node that nobody is connected to has nothing to look at
                self._table.abort_strangers(await asyncio.to_thread(self._roster.keys))
                self._table.abort_idle(idle_s)
            if not self._offers.count():
                continue
            try:
                await asyncio.to_thread(self._offers.expire, self._settings.stall_timeout_s, self._table.busy())
            except CodedError as error:
                log.error("a stale push could not be left cleanly: %s", error)

    def _introduce(self, store: Store) -> Introduction:
        port = self._listener.address[1] if self._listener is not None else None
        return introduce(store, self._keys, self._settings, port=port)

    def _caller(self, request: web.Request) -> Connection:
        """Raises ConnectionResetError when it has just ended."""
        found = self._callers.get(request.transport) if request.transport is not None else None
        if found is None:
            raise ConnectionResetError("the connection has ended")
        return found
