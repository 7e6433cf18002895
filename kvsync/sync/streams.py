"""N blocking streams under one event loop: they end together, and a cancelled one is woken.

plan ─► stream 1 (thread, bulk connection) ─┐
     ─► stream 2                            ├─► the first failure ends all
     ─► …                                   ┘
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kvsync.errors import UnavailableError
from kvsync.peer.bulk_client import BulkConnection
from kvsync.sync.plan import Plan
from kvsync_protocol.errors import IntegrityError, MalformedError

MAX_RECONNECTS: Final = 2
"""Times in a row that a stream connects anew without having moved a chunk in between."""
_PAUSE_S: Final = 0.1


class Stream(ABC):
    """Moves chunks of a plan over one bulk connection until none is left. `run` blocks."""

    def __init__(self, plan: Plan, connection: BulkConnection, peer: str) -> None:
        self.plan = plan
        self.connection = connection
        self.peer = peer
        self.under_way: deque[int] = deque()
        self._moved = 0
        self._stopping = threading.Event()

    @abstractmethod
    def begin(self, index: int) -> None:
        """Ask for, or send, chunk `index`."""

    @abstractmethod
    def finish(self, index: int) -> int:
        """Complete the oldest begun chunk; its bytes on the wire."""

    def run(self) -> None:
        """Raises what ends the transfer; a broken connection is first tried again."""
        failures = 0
        try:
            while not self._stopping.is_set():
                before = self._moved
                try:
                    self._session()
                    return
                except (IntegrityError, MalformedError) as error:
                    self._start_over(error)
                except UnavailableError as error:
                    self._start_over(None)
                    failures = 0 if self._moved > before else failures + 1
                    if failures > MAX_RECONNECTS or error.code == "peer.deadline":
                        raise
                    self._stopping.wait(_PAUSE_S * 2**failures)
        finally:
            self.plan.put_back(self.under_way)
            self.connection.close()

    def abort(self) -> None:
        """Make `run` end soon, from any thread."""
        self._stopping.set()
        self.connection.abort()

    def _session(self) -> None:
        if not self.connection.is_open:
            self.connection.open()
        while not self._stopping.is_set():
            while len(self.under_way) < self.connection.depth:
                index = self.plan.take()
                if index is None:
                    break
                self.under_way.append(index)
                self.begin(index)
            if not self.under_way:
                return
            wire = self.finish(self.under_way[0])
            self.plan.done(self.under_way.popleft(), wire)
            self._moved += 1

    def _start_over(self, error: IntegrityError | MalformedError | None) -> None:
        """After a fault the connection's place in the conversation is unknown: begin a new one."""
        self.connection.close()
        if error is not None:
            if not self.under_way:
                raise error
            self.plan.refused(self.under_way.popleft(), error, self.peer)
        self.plan.put_back(self.under_way)
        self.under_way.clear()


async def run_streams(streams: Sequence[Stream]) -> None:
    """Run all to their end in threads of their own. The first failure ends the others and is raised."""
    pool = ThreadPoolExecutor(len(streams), thread_name_prefix="kvsync-stream")
    try:
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(_run(pool, stream))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        pool.shutdown(wait=False)


async def _run(pool: ThreadPoolExecutor, stream: Stream) -> None:
    running = asyncio.get_running_loop().run_in_executor(pool, stream.run)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stream.abort()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen; what ended the transfer is raised instead
        raise
