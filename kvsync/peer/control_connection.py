"""One control connection between asyncio and aiohttp: proves who it is before aiohttp sees a byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, MutableMapping
from typing import cast

from aiohttp import web

from kvsync.peer.connections import Connection, ConnectionTable
from kvsync.peer.identity import peer_key
from kvsync.peer.roster import Roster
from kvsync_protocol.errors import TrustError
from kvsync_protocol.routes import CONTROL_ALPN

log = logging.getLogger(__name__)


class ControlConnection(asyncio.Protocol):
    """Passes everything on to an aiohttp request handler, once the key is known.

    `entered` tells that the connection table knows this connection and will be told of its end.
    """

    def __init__(
        self,
        server: web.Server,
        table: ConnectionTable,
        roster: Roster,
        callers: MutableMapping[asyncio.BaseTransport, Connection],
    ) -> None:
        self._server = server
        self._table = table
        self._roster = roster
        self._callers = callers
        self._transport: asyncio.Transport | None = None
        self._handler: web.RequestHandler | None = None
        self._entry: Connection | None = None
        self.entered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        opened = self._transport = cast(asyncio.Transport, transport)
        session: ssl.SSLObject = transport.get_extra_info("ssl_object")
        try:
            key = peer_key(session)
        except TrustError as error:
            log.info("control connection: %s", error)
            opened.abort()
            return
        if self._roster.find(key) is None or session.selected_alpn_protocol() != CONTROL_ALPN:
            opened.abort()
            return
        loop = asyncio.get_running_loop()
        handler = self._handler = self._server()
        self._entry = Connection(
            key,
            abort=lambda: _soon(loop, opened.abort),
            drain=lambda: _soon(loop, self._drain),
        )
        self._callers[transport] = self._entry
        self._table.add(self._entry)
        self.entered = True
        handler.connection_made(transport)

    def _drain(self) -> None:
        if self._handler is not None and self._entry is not None:
            # aiohttp's close lets a request in hand finish, but leaves an idle connection open.
            self._handler.close() if self._entry.idle_since is None else self._handler.force_close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._entry is not None and self._transport is not None and self._handler is not None:
            self._callers.pop(self._transport, None)
            self._table.remove(self._entry)
            self._handler.connection_lost(error)

    def data_received(self, data: bytes) -> None:
        if self._handler is not None:
            self._handler.data_received(data)

    def eof_received(self) -> None:
        if self._handler is not None:
            self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the connection
        loop.call_soon_threadsafe(call)
