"""The live side of the queue: who waits for work, who watches a job, who can stop one.

Belongs to the daemon's event loop; only `reporter` hands out something that other threads may call. Knows
neither HTTP nor processes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from kvsync.daemon.jobs import JobQueue
from kvsync.daemon.messages import Job, JobId, JobKind, JobState, Step, Submission
from kvsync.daemon.params import JobParams, parse_params
from kvsync.errors import KvsyncError, StoreError, UnavailableError
from kvsync.failure import Failure
from kvsync.progress import Progress

logger = logging.getLogger(__name__)

RECORD_INTERVAL_S: Final = 2.0
"""How often progress goes to disk; watchers see it at once."""
RETRY_S: Final = 10.0
"""Pause while the queue's file cannot be used."""
WATCH_INTERVAL_S: Final = 0.1
"""A watcher gets the newest state at most so often; what lies between is skipped."""


class Signal:
    """Wakes everyone who waits. Take `next()` first, look, then await it: no change is missed in between."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def next(self) -> asyncio.Event:
        return self._event

    def fire(self) -> None:
        self._event.set()
        self._event = asyncio.Event()


@dataclass(slots=True)
class _Running:
    """A job somebody is working on. `cancelled` tells a wanted end from a crash."""

    cancel: Callable[[], None]
    step: Step | None = None
    recorded: float = 0.0
    cancelled: bool = False


@dataclass(slots=True)
class JobBoard:
    """All jobs, as one event loop sees them."""

    queue: JobQueue
    closing: bool = False
    _running: dict[JobId, _Running] = field(default_factory=dict)
    _unsaved: dict[JobId, Job] = field(default_factory=dict)
    _work: Signal = field(default_factory=Signal)
    _changes: dict[JobId, Signal] = field(default_factory=dict)

    def submit(self, submission: Submission) -> Job:
        """Read the parameters strictly and queue the job.

        Raises:
            MalformedError, UsageError: `job.*` and what the parameters' parsers raise.
            UnavailableError: `daemon.stopping`, `job.queue_full`.
        """
        if self.closing:
            raise UnavailableError("daemon.stopping", "the daemon is stopping", hint="try again when it runs")
        job = self.queue.submit(submission.id, submission.kind, parse_params(submission.kind, submission.params))
        self._work.fire()
        return job

    async def take(self, kinds: Sequence[JobKind]) -> tuple[Job, JobParams]:
        """Wait for a job of these kinds and claim it. Waits for ever once the board is closing."""
        while True:
            work = self._work.next()
            try:
                found = None if self.closing else self.queue.claim(kinds)
            except StoreError as error:
                logger.error("no job can be taken, trying again in %s s: %s", RETRY_S, error)
                await _wait(work, RETRY_S)
                continue
            if found is not None:
                return found
            await work.wait()

    @contextmanager
    def running(self, job: JobId, cancel: Callable[[], None]) -> Iterator[None]:
        """While inside, `cancel` can be called to end the job early."""
        self._running[job] = _Running(cancel)
        self._changed(job)
        try:
            yield
        finally:
            del self._running[job]
            self._changed(job)

    def was_cancelled(self, job: JobId) -> bool:
        """True when a running job's end was asked for by a caller."""
        return job in self._running and self._running[job].cancelled

    def cancel(self, job: JobId) -> Job:
        """End a job that waits, ask a running one to end; a finished one stays as it is.

        Raises:
            NotFoundError: `job.unknown_id`.
        """
        found = self.get(job)
        running = self._running.get(job)
        if running is not None:
            running.cancelled = True
            running.cancel()
        elif not found.state.final:
            self.finish(job, JobState.CANCELLED)
        return self.get(job)

    def finish(
        self,
        job: JobId,
        state: JobState,
        *,
        result: dict[str, object] | None = None,
        failure: Failure | None = None,
    ) -> None:
        """The job's last state. One the disk cannot take is kept here; the job is then done again after a restart."""
        if state is JobState.CANCELLED:
            failure = Failure.of(KvsyncError("job.cancelled", "the job was cancelled"))
        shown = self.get(job)
        try:
            if shown.step is not None:
                self.queue.record(job, shown.step)
            self.queue.finish(job, state, result=result, failure=failure)
        except StoreError as error:
            logger.error("the end of job %s cannot be written: %s", job, error)
            self._unsaved[job] = replace(shown, state=state, result=result, failure=failure)
        self._changed(job)

    def put_back(self, job: JobId, *, crash: str | None = None) -> None:
        """The job waits again: after a crash (counted), or because the daemon stops."""
        try:
            if crash is None:
                self.queue.release(job)
            else:
                self.queue.crashed(job, crash)
        except StoreError as error:
            self.finish(job, JobState.FAILED, failure=Failure.of(error))
        self._changed(job)
        self._work.fire()

    def report(self, job: JobId, step: Step) -> None:
        """Where a running job is."""
        running = self._running.get(job)
        if running is None:
            return
        running.step = step
        now = time.monotonic()
        if now - running.recorded >= RECORD_INTERVAL_S:
            running.recorded = now
            try:
                self.queue.record(job, step)
            except StoreError as error:
                logger.warning("progress of job %s cannot be written: %s", job, error)
        self._changed(job)

    def reporter(self, job: JobId) -> Progress:
        """A progress for work on other threads: the newest step reaches the loop, however many there are."""
        loop = asyncio.get_running_loop()
        lock = threading.Lock()
        newest: list[Step] = []

        def deliver() -> None:
            with lock:
                step = newest.pop()
            self.report(job, step)

        def progress(stage: str, done: int, total: int, unit: str) -> None:
            with lock:
                waiting = bool(newest)
                newest[:] = [Step(stage, done, total, unit)]
            if not waiting and not loop.is_closed():
                loop.call_soon_threadsafe(deliver)

        return progress

    def get(self, job: JobId) -> Job:
        """Raises NotFoundError `job.unknown_id`."""
        if job in self._unsaved:
            return self._unsaved[job]
        found = self.queue.get(job)
        running = self._running.get(job)
        return found if running is None or running.step is None else replace(found, step=running.step)

    def recent(self, limit: int) -> list[Job]:
        return [self.get(job.id) for job in self.queue.recent(limit)]

    async def watch(self, job: JobId, *, heartbeat_s: float) -> AsyncIterator[Job]:
        """The job now and after each change, until it is finished or the board is closing.

        Says the same again after `heartbeat_s` without a change, so that a listener can tell a slow job from
        a dead daemon.

        Raises:
            NotFoundError: `job.unknown_id`.
        """
        said = 0.0
        while True:
            change = self._changes.setdefault(job, Signal()).next()
            found = self.get(job)
            pause = said + WATCH_INTERVAL_S - time.monotonic()
            if pause > 0 and not found.state.final and not self.closing:
                await asyncio.sleep(pause)
                found = self.get(job)
            said = time.monotonic()
            yield found
            if found.state.final or self.closing:
                return
            await _wait(change, heartbeat_s)

    def close(self) -> None:
        """Take and hand out no more work; watchers end."""
        self.closing = True
        for job in list(self._changes):
            self._changed(job)

    def _changed(self, job: JobId) -> None:
        signal = self._changes.pop(job, None)
        if signal is not None:
            signal.fire()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
