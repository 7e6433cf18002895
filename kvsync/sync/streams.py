"""N blocking streams to one provider under an event loop: they end together, and a cancelled one is woken.

plan ─ share ─► stream 1 (thread, bulk connection) ─┐
             ─► stream 2                            ├─► the first failure ends all of this provider's
             ─► …                                   ┘
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kvsync.errors import NotFoundError, UnavailableError
from kvsync.peer.bulk_client import BulkConnection
from kvsync.sync.share import Share
from kvsync_protocol.errors import IntegrityError, MalformedError

MAX_RECONNECTS: Final = 2
"""Times in a row that a stream connects anew without having moved a chunk in between."""
IDLE_S: Final = 1.0
"""A connection without work is closed after so long, and opened again when there is some."""
_PAUSE_S: Final = 0.1

log = logging.getLogger(__name__)


class SupersededError(Exception):
    """Another provider's copy of the chunk was first; what is still to come of it is not wanted."""


class Stream(ABC):
    """Moves chunks of a share over one bulk connection until there are none. `run` blocks."""

    def __init__(self, share: Share, connection: BulkConnection, *, ahead: bool = False) -> None:
        self.share = share
        self.plan = share.plan
        self.connection = connection
        self.under_way: deque[int] = deque()
        """Chunks begun, the oldest first: what a kill would lose. One, or two with `ahead`."""
        self._ahead = ahead
        self._at: int | None = None  # which of them the latest step was about
        self._moved = 0
        self._stopping = threading.Event()

    @abstractmethod
    def begin(self, index: int) -> None:
        """Ask for chunk `index`, or send it."""

    @abstractmethod
    def finish(self, index: int) -> int:
        """Fetch chunk `index`, or wait for the other side's word on it; its bytes on the wire.

        It is the oldest begun. May raise SupersededError.
        """

    def run(self) -> None:
        """Raises what ends the provider's part; a broken connection is first tried again."""
        failures = 0
        try:
            while not self._stopping.is_set():
                before = self._moved
                try:
                    self._session()
                    return
                except SupersededError:
                    self._start_over(None)
                except (IntegrityError, MalformedError) as error:
                    self._start_over(error)
                except NotFoundError as error:
                    self._start_over(error)
                except UnavailableError as error:
                    self._start_over(None)
                    failures = 0 if self._moved > before else failures + 1
                    if failures > MAX_RECONNECTS or error.code == "peer.deadline":
                        raise
                    self._stopping.wait(_PAUSE_S * 2**failures)
        finally:
            self._put_back()
            self.connection.close()

    def abort(self) -> None:
        """Make `run` end soon, from any thread."""
        self._stopping.set()
        self.connection.abort()
        self.plan.wake()

    def _session(self) -> None:
        while not self._stopping.is_set():
            if self._paused:
                self._put_back()
                self.connection.close()
                self._stopping.wait(_PAUSE_S)
                continue
            if not self.connection.is_open:
                if not self.share.wait(self._stopping):
                    return
                self.connection.open()
            self._begin()
            if self.under_way:
                self._finish()
            elif not self.share.wait(self._stopping, IDLE_S):
                if self.share.is_over:
                    return
                self.connection.close()

    def _begin(self) -> None:
        """As many chunks as may be under way at once."""
        while len(self.under_way) <= self._ahead:
            index = self._at = self.share.take()
            if index is None:
                return
            self.under_way.append(index)
            self.begin(index)

    def _finish(self) -> None:
        index = self._at = self.under_way[0]
        wire = self.finish(index)
        self.under_way.popleft()
        self.share.done(index, wire, encrypted=self.connection.is_encrypted)
        self._moved += 1

    @property
    def _paused(self) -> bool:
        return self.connection.throttle is not None and self.connection.throttle.paused

    def _start_over(self, error: IntegrityError | MalformedError | NotFoundError | None) -> None:
        """After a fault the connection's place in the conversation is unknown: begin a new one."""
        self.connection.close()
        index = self._at if self._at in self.under_way else None
        if error is None:
            self._put_back()
            return
        if index is None:
            raise error
        self.under_way.remove(index)
        self._put_back()
        if isinstance(error, NotFoundError):
            self.share.gone(index, error)
        elif not self.connection.is_encrypted:
            log.warning("chunk %d came changed without encryption; it is asked for again over TLS: %s", index, error)
            self.connection.stay_encrypted()
            self.share.spoiled(index)
        else:
            self.refused(index, error)

    def _put_back(self) -> None:
        """Return what was taken and not moved."""
        while self.under_way:
            self.share.put_back(self.under_way.pop())

    def refused(self, index: int, error: IntegrityError | MalformedError) -> None:
        """What came for chunk `index` was wrong. Raises as `Share.refused`."""
        self.share.refused(index, error)


async def run_streams(streams: Sequence[Callable[[], Awaitable[Stream]]]) -> None:
    """Run each in a thread of its own as soon as it is ready. The first failure ends the others and is raised."""
    pool = ThreadPoolExecutor(len(streams), thread_name_prefix="kvsync-stream")
    try:
        async with asyncio.TaskGroup() as group:
            for stream in streams:
                group.create_task(_run(pool, stream))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        pool.shutdown(wait=False)


async def _run(pool: ThreadPoolExecutor, ready: Callable[[], Awaitable[Stream]]) -> None:
    stream = await ready()
    running = asyncio.get_running_loop().run_in_executor(pool, stream.run)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        stream.abort()
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # seen; what ended the transfer is raised instead
        raise
