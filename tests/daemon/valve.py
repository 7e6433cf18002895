"""A TCP forwarder that stops in the middle: a peer's connection that hangs exactly when a test wants it to."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self


class Valve:
    """Forwards connections to `target`; what comes from there stops after `limit` bytes until `open()`."""

    def __init__(self, target: tuple[str, int], limit: int) -> None:
        self._target = target
        self._left = limit
        self._lock = threading.Lock()
        self._opened = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self._closing = False
        self._run(self._accept)

    @property
    def address(self) -> str:
        host, port = self._server.getsockname()
        return f"{host}:{port}"

    def open(self) -> None:
        """Let everything through from now on."""
        self._opened.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self.open()
        self._server.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for each in self._sockets:
                _shut(each)
        for thread in self._threads:
            thread.join()
        for each in (*self._sockets, self._server):
            each.close()

    def _run(self, work: object, *arguments: socket.socket) -> None:
        assert callable(work)
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            upstream = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [client, upstream]
            if self._closing:
                _shut(client)
            self._run(self._pump, client, upstream)
            self._run(self._pump_limited, upstream, client)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(sink)

    def _pump_limited(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                with self._lock:
                    self._left -= len(data)
                    stop = self._left < 0
                if stop:
                    self._opened.wait()
                sink.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(sink)


def _shut(each: socket.socket) -> None:
    try:
        each.shutdown(socket.SHUT_RDWR)
    except OSError:
        return
