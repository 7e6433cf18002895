"""HTTP ⇄ messages: a registry's requests, to be mounted on any aiohttp application (REGISTRY.md).

Who asks is told by the function that the embedder hands in; nothing in a request says it. Bodies are capped while
they are read, every request has a deadline, every refusal has one JSON form. Store calls run in threads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from aiohttp import web

from kvsync_protocol import registry_routes as routes
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import CodedError, MalformedError, TrustError, VersionError
from kvsync_protocol.limits import MAX_JSON_BYTES, KiB
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.ref import check_name
from kvsync_protocol.registry_messages import Envelopes, PrefixQuery, Vouched
from kvsync_protocol.signing import PublicKey
from kvsync_registry.errors import FullError, NotFoundError, RefusedError, UnavailableError
from kvsync_registry.service import Registry

MAX_QUERY_BYTES: Final = 512 * KiB
_STATUS: Final[dict[type[CodedError], int]] = {
    MalformedError: 400,
    VersionError: 400,
    TrustError: 403,
    RefusedError: 403,
    NotFoundError: 404,
    UnavailableError: 503,
    FullError: 507,
}
Caller = Callable[[web.Request], PublicKey]
T = TypeVar("T")
log = logging.getLogger(__name__)


def mount(app: web.Application, registry: Registry, caller: Caller, executor: Executor) -> None:
    """Add the routes. `caller` may raise ConnectionError when the connection is gone."""
    lane = _Lane(registry, caller, executor)
    lane.add(app, "POST", routes.STATEMENTS, lane.statements)
    lane.add(app, "POST", routes.LOOKUP, lane.lookup)
    lane.add(app, "GET", routes.PROVIDERS, lane.providers)
    lane.add(app, "GET", routes.NAMES, lane.names)
    lane.add(app, "POST", routes.NAMES, lane.set_name)
    lane.add(app, "GET", routes.ATTESTATIONS, lane.attestations)
    lane.add(app, "POST", routes.ATTESTATIONS, lane.attest)
    lane.add(app, "GET", routes.CONTACT, lane.contact)


class _Lane:
    """Handlers take the caller and the request and return the answer's body."""

    def __init__(self, registry: Registry, caller: Caller, executor: Executor) -> None:
        self._registry = registry
        self._caller = caller
        self._executor = executor

    def add(
        self,
        app: web.Application,
        method: str,
        path: str,
        handler: Callable[[PublicKey, web.Request], Awaitable[bytes]],
    ) -> None:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._answer(request, handler)

        app.router.add_route(method, path, handle)

    async def _answer(
        self, request: web.Request, handler: Callable[[PublicKey, web.Request], Awaitable[bytes]]
    ) -> web.StreamResponse:
        try:
            async with asyncio.timeout(self._registry.limits.request_deadline_s):
                return _response(await handler(self._caller(request), request), 200)
        except CodedError as error:
            status = next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)
            return _refusal(request, ErrorReply.of(error), status)
        except TimeoutError:
            return _refusal(request, ErrorReply("registry.busy", "not done in time", "try again later"), 503)
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception:
            log.exception("request %s failed", request.method)
            return _refusal(request, ErrorReply("registry.failed", "the registry failed; its log says why"), 500)

    async def _in_thread(self, call: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call, *args)

    async def statements(self, caller: PublicKey, request: web.Request) -> bytes:
        body = await _body(request, MAX_JSON_BYTES)

        def work() -> bytes:
            return self._registry.declare(caller, Envelopes.parse(body).envelopes).encode()

        return await self._in_thread(work)

    async def lookup(self, caller: PublicKey, request: web.Request) -> bytes:
        body = await _body(request, MAX_QUERY_BYTES)

        def work() -> bytes:
            return self._registry.lookup(caller, PrefixQuery.parse(body)).encode()

        return await self._in_thread(work)

    async def providers(self, caller: PublicKey, request: web.Request) -> bytes:
        return (await self._in_thread(self._registry.providers, caller, _artifact(request))).encode()

    async def names(self, caller: PublicKey, request: web.Request) -> bytes:
        name, after = (check_name(text) if (text := request.query.get(key)) else "" for key in ("name", "after"))
        return (await self._in_thread(self._registry.refs, caller, name, after)).encode()

    async def set_name(self, caller: PublicKey, request: web.Request) -> bytes:
        body = await _body(request, MAX_JSON_BYTES)
        await self._in_thread(lambda: self._registry.set_ref(caller, Vouched.parse(body)))
        return b""

    async def attestations(self, caller: PublicKey, request: web.Request) -> bytes:
        return (await self._in_thread(self._registry.attestations, caller, _artifact(request))).encode()

    async def attest(self, caller: PublicKey, request: web.Request) -> bytes:
        artifact, body = _artifact(request), await _body(request, MAX_JSON_BYTES)
        await self._in_thread(lambda: self._registry.attest(caller, artifact, Vouched.parse(body)))
        return b""

    async def contact(self, caller: PublicKey, request: web.Request) -> bytes:
        key = PublicKey.parse(request.match_info["key"])
        return (await self._in_thread(self._registry.contact, caller, key)).encode()


def _artifact(request: web.Request) -> ArtifactId:
    return ArtifactId(Digest.parse(request.match_info["artifact"]))


async def _body(request: web.Request, limit: int) -> bytes:
    """All of the body. Raises MalformedError `message.size` as soon as it is longer than `limit`."""
    found = bytearray()
    while (request.content_length or 0) <= limit >= len(found):
        piece = await request.content.readany()
        if not piece and request.content.at_eof():
            return bytes(found)
        found += piece
    raise MalformedError("message.size", f"a body of more than {limit} bytes")


def _refusal(request: web.Request, reply: ErrorReply, status: int) -> web.Response:
    log.info("refused %s: %s", request.method, reply.code)
    response = _response(reply.encode(), status)
    if request.body_exists:
        response.force_close()  # the rest of a body that nobody reads may still be coming
    return response


def _response(body: bytes, status: int) -> web.Response:
    return web.Response(
        body=body, status=status, content_type="application/json", headers={"Cache-Control": "no-store"}
    )
