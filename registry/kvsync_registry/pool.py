"""A few database connections shared by threads. Knows nothing of what is done with them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from kvsync_registry.errors import UnavailableError


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


class Pool(Generic[C]):
    """At most `size` connections, opened when first needed."""

    def __init__(self, connect: Callable[[], C], size: int, *, wait_s: float = 10.0) -> None:
        self._connect = connect
        self._wait_s = wait_s
        self._free: queue.LifoQueue[C] = queue.LifoQueue()
        self._slots = threading.Semaphore(size)
        self._closed = False

    @contextmanager
    def connection(self, broken: Callable[[C], bool]) -> Iterator[C]:
        """One connection for this thread alone. Afterwards it is kept, unless it is `broken`.

        Raises:
            UnavailableError: `registry.busy` when none came free in time, `registry.closed`.
        """
        if not self._slots.acquire(timeout=self._wait_s):
            raise UnavailableError("registry.busy", "the registry is busy", hint="try again later")
        try:
            if self._closed:
                raise UnavailableError("registry.closed", "the registry is closed")
            try:
                taken = self._free.get_nowait()
            except queue.Empty:
                taken = self._connect()
            try:
                yield taken
            finally:
                if self._closed or broken(taken):
                    taken.close()
                else:
                    self._free.put(taken)
        finally:
            self._slots.release()

    def close(self) -> None:
        """Close what is free; what is in use closes when it is given back."""
        self._closed = True
        self.forget()

    def forget(self) -> None:
        """Close what is free: when one connection turns out to be dead, the others are no better."""
        while True:
            try:
                self._free.get_nowait().close()
            except queue.Empty:
                return
