"""Somebody on the way between two nodes: every byte passes through, is written down, and may be changed."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.sync.nodes import Node


@dataclass
class Passage:
    """One connection: what went to the server, `up`, and what came back, `down`."""

    up: bytearray = field(default_factory=bytearray)
    down: bytearray = field(default_factory=bytearray)


Edit = Callable[[Passage, str, bytes], bytes]
"""(the connection so far, "up" or "down", the next bytes) -> what goes on in their place."""


class Wire:
    """Listens at `address` and passes everything on to the node. The node's address becomes this one."""

    def __init__(self, edit: Edit | None = None) -> None:
        self.passages: list[Passage] = []
        self._edit = edit
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listening]
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"

    @asynccontextmanager
    async def before(self, node: Node) -> AsyncIterator[Wire]:
        host, port = node.address.split(":")
        accepting = threading.Thread(target=self._accept, args=((host, int(port)),), daemon=True)
        accepting.start()
        node.address, own = self.address, node.address
        try:
            yield self
        finally:
            node.address = own
            await asyncio.to_thread(self._end, accepting)

    @property
    def seen(self) -> bytes:
        """All that anybody on the way could read."""
        return b"|".join(bytes(passage.up + passage.down) for passage in self.passages)

    def _accept(self, server: tuple[str, int]) -> None:
        pumps = []
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                break
            far = socket.create_connection(server)
            self._sockets += [near, far]
            passage = Passage()
            self.passages.append(passage)
            for way, source, target in (("up", near, far), ("down", far, near)):
                pumps.append(threading.Thread(target=self._pump, args=(passage, way, source, target), daemon=True))
                pumps[-1].start()
        for pump in pumps:
            pump.join()

    def _pump(self, passage: Passage, way: str, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                changed = data if self._edit is None else self._edit(passage, way, data)
                getattr(passage, way).extend(data)
                target.sendall(changed)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _end(self, accepting: threading.Thread) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        accepting.join()
        for one in self._sockets:
            one.close()
