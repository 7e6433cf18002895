"""HTTP's 102, for those who wait: what a slow disk holds up looks from afar like what nobody works on."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import HttpVersion11, web

TELL_S: Final = 0.5
"""Half of the least `stall_timeout_s` that the other side may have."""
_PROCESSING: Final = b"HTTP/1.1 102 Processing\r\n\r\n"


class Processing:
    """Says every `TELL_S` seconds that a request is being worked on, until `end`, which comes before the answer."""

    def __init__(self, request: web.Request) -> None:
        self._request: web.Request | None = request
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(TELL_S, self._tell)

    def _tell(self) -> None:
        if self._request is None or self._request.version < HttpVersion11:
            return
        if self._request.transport is not None and not self._request.transport.is_closing():
            self._request.transport.write(_PROCESSING)
            self._timer = self._loop.call_later(TELL_S, self._tell)

    def end(self) -> None:
        """Say no more; safe to call twice. Lets go of the request: cancelled timers may hold this object for long."""
        self._timer.cancel()
        self._request = None
