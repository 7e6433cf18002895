"""Owns the worker: starts it when there is something to compute, restarts it after a crash, ends it when idle.

take a job ─► worker ready? ─► run ─► done | failed
                  ▲             │
                  └── back-off ─┴─ died: the job waits again, or has failed too often
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, assert_never

from kvsync.config import Home
from kvsync.daemon.board import JobBoard
from kvsync.daemon.messages import Job, JobId, JobKind, JobState
from kvsync.daemon.params import ComputeParams
from kvsync.daemon.pipe import Done, Failed
from kvsync.daemon.process import WorkerDiedError, WorkerProcess

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
IDLE_S: Final = 900.0
"""A worker without work gives its memory back after so long."""
STOP_GRACE_S: Final = 5.0

logger = logging.getLogger(__name__)


class Supervisor:
    """Runs the board's compute jobs, one at a time."""

    def __init__(self, board: JobBoard, home: Home) -> None:
        self._board = board
        self._home = home
        self._worker: WorkerProcess | None = None
        self._crashes = 0
        self.state = "absent"
        """absent, starting, idle, busy or waiting (after a crash)."""

    @property
    def pid(self) -> int | None:
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    async def run(self) -> None:
        """Until cancelled; then the worker is stopped and its job waits for the next start."""
        try:
            while True:
                job, params = await self._next()
                if not await self._do(job, params):
                    self.state = "waiting"
                    await asyncio.sleep(min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self._crashes - 1)))
        finally:
            await self._end_worker()

    async def _next(self) -> tuple[Job, ComputeParams]:
        while True:
            self.state = "absent" if self.pid is None else "idle"
            try:
                async with asyncio.timeout(None if self._worker is None else IDLE_S):
                    job, params = await self._board.take([JobKind.COMPUTE])
            except TimeoutError:
                logger.info("nothing to compute for %.0f s: the worker ends", IDLE_S)
                await self._end_worker()
                continue
            if isinstance(params, ComputeParams):
                return job, params

    async def _do(self, job: Job, params: ComputeParams) -> bool:
        """One job to its end, to the queue after a crash (False), or back to it when the daemon stops."""
        with self._board.running(job.id, lambda: self._cancel(job.id)):
            try:
                worker = await self._ready()
                if self._board.was_cancelled(job.id):  # while the worker started
                    self._board.finish(job.id, JobState.CANCELLED)
                    return True
                self.state = "busy"
                logger.info("job %s: computing, attempt %d", job.id, job.attempts)
                report = await worker.run(job.id, params, lambda step: self._board.report(job.id, step))
            except WorkerDiedError as died:
                return self._died(job.id, str(died))
            except asyncio.CancelledError:
                await self._end_worker()
                self._board.put_back(job.id)
                raise
            self._crashes = 0
            match report:
                case Done(_, result):
                    logger.info("job %s: done", job.id)
                    self._board.finish(job.id, JobState.DONE, result=result)
                case Failed(_, failure) if failure.code == "job.cancelled":
                    self._board.finish(job.id, JobState.CANCELLED)
                case Failed(_, failure):
                    logger.warning("job %s: %s (%s)", job.id, failure.message, failure.code)
                    self._board.finish(job.id, JobState.FAILED, failure=failure)
                case _ as never:
                    assert_never(never)
            return True

    def _died(self, job: JobId, reason: str) -> bool:
        """True when the worker died because this job was cancelled."""
        self._worker = None
        if self._board.was_cancelled(job):
            self._board.finish(job, JobState.CANCELLED)
            return True
        self._crashes += 1
        logger.error("job %s: %s", job, reason)
        self._board.put_back(job, crash=reason)
        return False

    async def _ready(self) -> WorkerProcess:
        if self._worker is None or not self._worker.alive:
            self.state = "starting"
            self._worker = None
            self._worker = await WorkerProcess.start(self._home)
            logger.info("worker %d started", self._worker.pid)
        return self._worker

    def _cancel(self, job: JobId) -> None:
        if self._worker is not None and self.state == "busy":
            self._worker.cancel(job)

    async def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop(STOP_GRACE_S)
        self.state = "absent"
