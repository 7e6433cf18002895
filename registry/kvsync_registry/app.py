"""`RegistryServer`: a registry behind one TLS port of its own. Whoever starts it hands in who may come.

Knows no keys and no files: `context` makes the TLS context of a moment, `identify` tells whose session it is.
A daemon that already has a control lane mounts `handlers` there instead and needs none of this.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aiohttp import web

from kvsync_protocol import routes
from kvsync_protocol.messages import Hello
from kvsync_protocol.signing import PublicKey
from kvsync_registry import handlers
from kvsync_registry.errors import RegistryError, UnavailableError
from kvsync_registry.member import Members
from kvsync_registry.service import Registry

SOFTWARE: Final = "kvsync-registry/0.1"
HEALTH: Final = "/v1/health"
HANDSHAKE_S: Final = 10.0
IDLE_S: Final = 60.0
DRAIN_S: Final = 10.0

log = logging.getLogger(__name__)


class RegistryServer:
    """`start` and `stop` belong to one event loop and are called once each."""

    def __init__(
        self,
        registry: Registry,
        members: Members,
        *,
        context: Callable[[], ssl.SSLContext],
        identify: Callable[[ssl.SSLObject], PublicKey],
        host: str = "127.0.0.1",
        port: int = 0,
        threads: int = 8,
    ) -> None:
        self._registry = registry
        self._members = members
        self._context = context
        self._identify = identify
        self._host, self._port = host, port
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="kvsync-registry")
        self._handshakes: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._socket: socket.socket | None = None
        app = web.Application(middlewares=[self._guard])
        app.router.add_get(routes.HELLO, self._hello, allow_head=False)
        app.router.add_get(HEALTH, self._health, allow_head=False)
        handlers.mount(app, registry, self._caller, self._executor)
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
            lingering_time=1.0,
            shutdown_timeout=DRAIN_S,
        )

    async def start(self) -> tuple[str, int]:
        """Listen; returns host and port. Raises UnavailableError `registry.listen`."""
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            self._socket = await loop.run_in_executor(None, _listen, self._host, self._port)
        except OSError as error:
            raise UnavailableError(
                "registry.listen", f"cannot listen at {self._host} port {self._port}: {error.strerror}"
            ) from error
        self._tasks = [
            asyncio.create_task(self._accept(self._socket), name="kvsync-registry-accept"),
            asyncio.create_task(self._sweep(), name="kvsync-registry-sweep"),
        ]
        host, port = self._socket.getsockname()[:2]
        log.info("registry listening at %s port %d", host, port)
        return host, port

    async def stop(self) -> None:
        """Accept no more, finish the requests in hand, close. Safe to call twice."""
        for task in (*self._tasks, *self._handshakes):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._handshakes, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        await self._runner.cleanup()
        self._executor.shutdown(wait=True, cancel_futures=True)

    # connections

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("accept failed: %s", error)
                await asyncio.sleep(0.1)  # out of descriptors: closing connections frees some
                continue
            server = self._runner.server
            held = len(self._handshakes) + (len(server.connections) if server else 0)
            if server is None or held >= self._registry.limits.connections:
                connection.close()
                continue
            task = asyncio.create_task(self._adopt(server, connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _adopt(self, server: web.Server, connection: socket.socket) -> None:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                server, connection, ssl=self._context(), ssl_handshake_timeout=HANDSHAKE_S, ssl_shutdown_timeout=0.5
            )
        except OSError as error:
            log.info("no session: %s", error)
            connection.close()

    def _caller(self, request: web.Request) -> PublicKey:
        """Raises ConnectionResetError when the connection has just ended; what `identify` raises."""
        session = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        if session is None:
            raise ConnectionResetError("the connection has ended")
        return self._identify(session)

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """A key that was removed since its handshake is cut off before anything is looked at."""
        if self._members.find(self._caller(request)) is None:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("no longer a member")
        return await handler(request)

    # what is not the registry's own

    async def _hello(self, request: web.Request) -> web.Response:
        member = self._members.find(self._caller(request))
        rights = {"get": member.ask, "push": member.publish} if member else {}
        hello = Hello(SOFTWARE, (), tuple(role for role, granted in rights.items() if granted))
        return web.Response(body=hello.encode(), content_type="application/json")

    async def _health(self, request: web.Request) -> web.Response:
        """200 while the database answers, for balancers that are members."""
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._executor, self._registry.store.contact, self._caller(request), 0)
        except RegistryError:
            return web.Response(status=503)
        return web.Response(status=200)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._registry.limits.sweep_every_s)
            try:
                removed = await asyncio.get_running_loop().run_in_executor(self._executor, self._registry.sweep)
            except RegistryError as error:
                log.warning("not swept: %s", error)
            except Exception:
                log.exception("a sweep failed; the next one tries again")
            else:
                log.info("swept %d offers", removed)


def _listen(host: str, port: int) -> socket.socket:
    family, kind, number, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listening = socket.socket(family, kind, number)
    with contextlib.ExitStack() as stack:
        stack.callback(listening.close)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
        listening.setblocking(False)
        stack.pop_all()
    return listening
