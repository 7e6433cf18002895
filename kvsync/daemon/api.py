"""The local API: HTTP/1.1 over the home's unix socket, for this user alone.

    GET  /status               POST /jobs               GET /jobs              GET /jobs/{id}
    GET  /jobs/{id}/events     POST /jobs/{id}/cancel   POST /shutdown

The socket lies in a 0700 directory; the peer's uid, the Host header and the absence of a browser's headers are
checked all the same, and no CORS header is ever sent. Errors are `{"error": {kind, code, message, hint, fields}}`.
Knows the board, not the work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web

from kvsync.daemon import endpoint
from kvsync.daemon.board import JobBoard
from kvsync.daemon.messages import (
    API_HOST,
    API_VERSION,
    MAX_LISTED_JOBS,
    MAX_REQUEST_BYTES,
    VERSION_HEADER,
    JobId,
    Status,
    Submission,
    parse_job_id,
)
from kvsync.errors import (
    KvsyncError,
    NotFoundError,
    PolicyError,
    StoreError,
    UnavailableError,
    UsageError,
)
from kvsync.failure import Failure
from kvsync_protocol import strictjson
from kvsync_protocol.errors import CodedError, ProtocolError

HEARTBEAT_S: Final = 15.0
"""A stream of events says something at least so often."""
CLOSE_S: Final = 2.0
"""How long answers under way may take when the daemon stops."""
MAX_LINE_BYTES: Final = 8190

_STATUSES: Final[tuple[tuple[type[CodedError], int], ...]] = (
    (PolicyError, 403),
    (NotFoundError, 404),
    (UnavailableError, 503),
    (StoreError, 507),
    (UsageError, 422),
    (ProtocolError, 400),
)
_BROWSER_HEADERS: Final = ("Origin", "Referer", "Sec-Fetch-Site", "Sec-Fetch-Mode")
"""What browsers add and no page can leave out; no client of this API sends any."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = logging.getLogger(__name__)


class LocalApi:
    """Answers clients from the board. `owner` is the only uid served; `shutdown` asks the daemon to end."""

    def __init__(
        self, board: JobBoard, status: Callable[[], Status], shutdown: Callable[[], None], *, owner: int
    ) -> None:
        self._board = board
        self._status = status
        self._shutdown = shutdown
        self._owner = owner

    @asynccontextmanager
    async def serve(self, server: socket.socket) -> AsyncIterator[None]:
        """Answer on a listening socket while inside."""
        application = web.Application(middlewares=[self._errors, self._guard], client_max_size=MAX_REQUEST_BYTES)
        application.on_response_prepare.append(_add_version)
        application.add_routes(
            [
                web.get("/status", self._get_status, allow_head=False),
                web.get("/jobs", self._get_jobs, allow_head=False),
                web.post("/jobs", self._post_job),
                web.get("/jobs/{job}", self._get_job, allow_head=False),
                web.get("/jobs/{job}/events", self._get_events, allow_head=False),
                web.post("/jobs/{job}/cancel", self._post_cancel),
                web.post("/shutdown", self._post_shutdown),
            ]
        )
        runner = web.AppRunner(
            application,
            handle_signals=False,
            access_log=None,
            shutdown_timeout=CLOSE_S,
            auto_decompress=False,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, server).start()
            yield
        finally:
            await runner.cleanup()

    @web.middleware
    async def _errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every refusal in one form."""
        try:
            return await handler(request)
        except CodedError as error:
            return _refuse(error)
        except web.HTTPRequestEntityTooLarge:
            return _refuse(UsageError("api.too_large", f"a request has at most {MAX_REQUEST_BYTES} bytes"), 413)
        except web.HTTPException as error:
            return _refuse(UsageError("api.route", f"no {request.method} {request.path} here"), error.status)
        except ConnectionError:
            raise  # the client went away
        except Exception as error:
            logger.exception("%s %s", request.method, request.path)
            unexpected = KvsyncError("api.unexpected", f"{type(error).__name__}: {error}", hint="see daemon.log")
            return _refuse(unexpected, 500)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Nobody else, and nobody's browser."""
        connection = None if request.transport is None else request.transport.get_extra_info("socket")
        if connection is None:
            raise ConnectionResetError("the client went away")
        if endpoint.peer_uid(connection) != self._owner:
            logger.warning("refused a client of another user")
            raise PolicyError("api.other_user", "this daemon serves another user")
        if request.headers.getall("Host", []) != [API_HOST]:
            raise PolicyError("api.host", "a request for another host", hint=f"send Host: {API_HOST}")
        if any(name in request.headers for name in _BROWSER_HEADERS):
            raise PolicyError("api.origin", "a request that a web page made")
        return await handler(request)

    async def _get_status(self, request: web.Request) -> web.Response:
        return _answer({"status": self._status().as_json()})

    async def _get_jobs(self, request: web.Request) -> web.Response:
        return _answer({"jobs": [job.as_json() for job in self._board.recent(MAX_LISTED_JOBS)]})

    async def _post_job(self, request: web.Request) -> web.Response:
        data = await request.read()
        submission = await asyncio.to_thread(Submission.parse, data)  # a document takes a while to scan
        return _answer({"job": self._board.submit(submission).as_json()}, 201)

    async def _get_job(self, request: web.Request) -> web.Response:
        return _answer({"job": self._board.get(_job_id(request)).as_json()})

    async def _post_cancel(self, request: web.Request) -> web.Response:
        return _answer({"job": self._board.cancel(_job_id(request)).as_json()}, 202)

    async def _post_shutdown(self, request: web.Request) -> web.Response:
        self._shutdown()
        return _answer({"status": self._status().as_json()}, 202)

    async def _get_events(self, request: web.Request) -> web.StreamResponse:
        """The job's state, a line each time it changes, until it is finished; every line is complete."""
        job = _job_id(request)
        self._board.get(job)  # an unknown one is an error, not an empty stream
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        async for state in self._board.watch(job, heartbeat_s=HEARTBEAT_S):
            await response.write(strictjson.dumps({"job": state.as_json()}) + b"\n")
        await response.write_eof()
        return response


def _job_id(request: web.Request) -> JobId:
    return parse_job_id(request.match_info["job"])


def _answer(body: dict[str, object], status: int = 200) -> web.Response:
    return web.Response(body=strictjson.dumps(body), status=status, content_type="application/json")


def _refuse(error: CodedError, status: int | None = None) -> web.Response:
    if status is None:
        status = next((number for kind, number in _STATUSES if isinstance(error, kind)), 500)
    response = _answer({"error": Failure.of(error).as_json()}, status)
    if status == 413:
        response.force_close()  # the rest of the body is not read
    return response


async def _add_version(request: web.Request, response: web.StreamResponse) -> None:
    response.headers[VERSION_HEADER] = str(API_VERSION)
