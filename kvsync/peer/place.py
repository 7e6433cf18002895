"""Where a socket's other end is, as text that leads there again."""

from __future__ import annotations

import socket
from typing import Any


def host_of(place: tuple[Any, ...]) -> str:
    """The numeric host of a socket's address; where that belongs to a single link, with the interface behind a %.
    Python's sockets keep it apart, and without it the address means nothing."""
    return socket.getnameinfo(place, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
