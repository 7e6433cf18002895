"""The body of an answer on the control lane: in one piece or part by part, neither too long nor too slow."""

from __future__ import annotations

import asyncio
import time

import aiohttp

from kvsync.peer.stream import LEAST_RATE
from kvsync_protocol import parts
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB


class AnswerBody:
    """An answer's body as it comes, neither longer nor slower than it may be.

    Raises MalformedError `message.size`; TimeoutError when it comes too slowly.
    """

    def __init__(self, response: aiohttp.ClientResponse, stall_s: float) -> None:
        self._content = response.content
        self._stall_s = stall_s
        self._slowest = time.monotonic() + stall_s
        self._size = 0

    async def rest(self, limit: int) -> bytes:
        """All that is left."""
        found = bytearray()
        while piece := await self._read(256 * KiB):
            found += piece
            if len(found) > limit:
                raise MalformedError("message.size", f"an answer of more than {limit} bytes")
        return bytes(found)

    async def part(self, limit: int) -> bytes:
        """The next of several parts."""
        (length,) = parts.LENGTH.unpack(await self._exactly(parts.LENGTH.size))
        if length > limit:
            raise MalformedError("message.size", f"a part of {length} bytes, of at most {limit}")
        return await self._exactly(length)

    async def _exactly(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            piece = await self._read(size - len(found))
            if not piece:
                raise MalformedError("message.size", "an answer that ends within a part")
            found += piece
        return bytes(found)

    async def _read(self, most: int) -> bytes:
        async with asyncio.timeout(self._stall_s):
            piece = await self._content.read(most)
        self._size += len(piece)
        if time.monotonic() > self._slowest + self._size / LEAST_RATE:
            raise TimeoutError("a byte now and then is as good as nothing")
        return piece
