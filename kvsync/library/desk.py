"""Libraries as peers may ask for them: lists and entries over the control lane (LIBRARY 3).

A peer sees a library as it sees a name: with the role get, and where it is limited to names, when its patterns
match. A library that it may not see and one that is not here are refused in the same words.
"""

from __future__ import annotations

from aiohttp import web

from kvsync.config import Home
from kvsync.library.shelf import Shelf, unknown
from kvsync.peer.lane import Lane
from kvsync_protocol import library_routes as routes
from kvsync_protocol.digest import Digest


class LibraryDesk:
    """Mounted on a control lane; reads the home's libraries anew for each request."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def mount(self, app: web.Application, lane: Lane) -> None:
        async def listed(request: web.Request) -> web.StreamResponse:
            shelf = self._seen(lane, request, "name")
            envelope = await lane.in_thread(shelf.read_list)
            return await lane.answer(request, envelope.encode())

        async def entry(request: web.Request) -> web.StreamResponse:
            shelf, digest = self._seen(lane, request, "library"), Digest.parse(request.match_info["entry"])
            envelope = await lane.in_thread(_read_entry, shelf, digest)
            return await lane.answer(request, envelope)

        app.router.add_get(routes.LIBRARIES, listed, allow_head=False)
        app.router.add_get(routes.ENTRY, entry, allow_head=False)

    def _seen(self, lane: Lane, request: web.Request, word: str) -> Shelf:
        """The library that is asked for, as far as the caller may know of it."""
        peer = lane.peer(request, "get")
        shelf = Shelf.of(self._home, request.query.get(word, ""))
        if not peer.sees([shelf.name]):
            raise unknown(shelf.name)
        return shelf


def _read_entry(shelf: Shelf, digest: Digest) -> bytes:
    shelf.require()
    return shelf.read_entry(digest).encode()
