"""Bodies of the control lane, in and out: capped while they move, and never waited for without end."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import web

from kvsync.peer.stream import LEAST_RATE
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB

_PIECE: Final = 256 * KiB


async def read_body(request: web.Request, limit: int, *, stall_s: float) -> bytes:
    """All of the body, refused as soon as it is longer than `limit`.

    Raises:
        MalformedError: `message.size`.
        TimeoutError: nothing came for `stall_s`, or all of it too slowly.
    """
    found = bytearray()
    async with asyncio.timeout(stall_s + limit / LEAST_RATE):
        while (request.content_length or 0) <= limit >= len(found):
            async with asyncio.timeout(stall_s):
                piece = await request.content.readany()
            if not piece and request.content.at_eof():
                return bytes(found)
            found += piece
    raise MalformedError("message.size", f"a body of more than {limit} bytes")


async def send(
    request: web.Request, data: bytes, kind: str, *, status: int, last: bool, stall_s: float
) -> web.StreamResponse:
    """Write the whole answer here, where it is timed.

    `last` False ends the connection, because a body that nobody reads may still be coming.

    Raises:
        TimeoutError: the other side takes nothing for `stall_s`.
    """
    response = web.StreamResponse(status=status, headers={"Cache-Control": "no-store"})
    response.content_type = kind
    response.content_length = len(data)
    if not last:
        response.force_close()
    async with asyncio.timeout(stall_s):
        await response.prepare(request)
    for start in range(0, len(data), _PIECE):
        async with asyncio.timeout(stall_s):
            await response.write(data[start : start + _PIECE])
    async with asyncio.timeout(stall_s):
        await response.write_eof()
    return response
