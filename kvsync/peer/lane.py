"""The frame around every request of the control lane: who asks, a deadline, one form for every refusal.

Who asks is known from TLS alone; the Host header, addresses and names play no part. Knows no routes.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from contextvars import ContextVar
from typing import TypeVar

from aiohttp import web

from kvsync.config import Settings
from kvsync.errors import PolicyError
from kvsync.keys import Peer
from kvsync.peer.connections import Connection
from kvsync.peer.exchange import read_body, send
from kvsync.peer.processing import Processing
from kvsync.peer.remote_errors import http_status
from kvsync.peer.roster import Roster
from kvsync_protocol.errors import CodedError
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.signing import PublicKey

T = TypeVar("T")
_processing: ContextVar[Processing] = ContextVar("kvsync.processing")
log = logging.getLogger(__name__)


class Lane:
    """What handlers need. Store calls run in threads: those that wait for the disk in `writing`'s, so that a slow
    one holds up nobody who only reads.
    """

    def __init__(
        self,
        roster: Roster,
        settings: Settings,
        reading: Executor,
        writing: Executor,
        caller: Callable[[web.Request], Connection],
    ) -> None:
        self.roster = roster
        self._reading = reading
        self._writing = writing
        self._settings = settings
        self._caller = caller

    def key(self, request: web.Request) -> PublicKey:
        """Who asks. Raises ConnectionResetError when the connection has just ended."""
        return self._caller(request).key

    def peer(self, request: web.Request, role: str) -> Peer:
        """Who asks, as listed here. Raises PolicyError `peer.role` as `require`."""
        found = self.roster.find(self.require(request, role))
        if found is None:
            raise ConnectionResetError("removed this very moment")
        return found

    async def answer(self, request: web.Request, data: bytes) -> web.StreamResponse:
        return await self._send(request, data, "application/json")

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Deadline, one form for every error, and the connection's idle mark."""
        connection = self._caller(request)
        if self.roster.find(connection.key) is None:  # removed since its handshake
            return _cut(request)
        connection.idle_since = None
        processing = Processing(request)
        _processing.set(processing)
        try:
            async with asyncio.timeout(self._settings.transfer_deadline_s):
                return await self._answered(request, handler)
        except (TimeoutError, ConnectionError) as error:
            log.info("%s %s was not finished: %s", request.method, request.path, error or type(error).__name__)
            return _cut(request)
        finally:
            processing.end()
            connection.idle_since = time.monotonic()

    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except CodedError as error:
            return await self._refuse(request, http_status(error), ErrorReply.of(error))
        except web.HTTPException as error:
            return await self._refuse(request, error.status, ErrorReply("peer.route", "no such request here"))
        except (TimeoutError, asyncio.CancelledError, ConnectionError):
            raise
        except Exception:
            log.exception("request %s %s failed", request.method, request.path)
            return await self._refuse(request, 500, ErrorReply("peer.failed", "the peer failed; its log says why"))

    async def _refuse(self, request: web.Request, status: int, reply: ErrorReply) -> web.StreamResponse:
        log.info("refused %s %s: %s", request.method, request.path, reply.code)
        return await self._send(
            request, reply.encode(), "application/json", status=status, last=not request.body_exists
        )

    async def body(self, request: web.Request, limit: int) -> bytes:
        return await read_body(request, limit, stall_s=self._settings.stall_timeout_s)

    async def _send(
        self, request: web.Request, data: bytes, kind: str, *, status: int = 200, last: bool = True
    ) -> web.StreamResponse:
        _processing.get().end()
        stall_s = self._settings.stall_timeout_s
        return await send(request, data, kind, status=status, last=last, stall_s=stall_s)

    async def in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._reading, call, *args)

    async def in_writing_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, call, *args)

    def require(self, request: web.Request, role: str) -> PublicKey:
        """Before anything is looked up, so that a peer without the role learns nothing."""
        key = self._caller(request).key
        peer = self.roster.find(key)
        if peer is None or role not in peer.roles:
            raise PolicyError("peer.role", f"this peer may not {role} here", hint="kvsync peer add --role, there")
        return key

    def _roles(self, request: web.Request) -> tuple[str, ...]:
        peer = self.roster.find(self._caller(request).key)
        return peer.roles if peer is not None else ()


def _cut(request: web.Request) -> web.Response:
    """Break the connection now, so that the answer which aiohttp wants goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=503)


Extension = Callable[[web.Application, Lane], None]
"""Adds routes to the application of a lane."""
