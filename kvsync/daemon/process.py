"""`WorkerProcess`: the daemon's end of the two pipes to one worker.

What comes out of the worker is read as strictly as what a peer sends: a worker that breaks the rules is
killed like one that hangs. Knows nothing of queues and retries.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable
from typing import Final

from kvsync.config import Home
from kvsync.daemon.messages import JobId, Step
from kvsync.daemon.params import ComputeParams
from kvsync.daemon.pipe import (
    MAX_REPORT_BYTES,
    Cancel,
    Done,
    Failed,
    Order,
    Progressed,
    Ready,
    Report,
    Run,
    Stop,
    decode_report,
    encode,
)
from kvsync_protocol.errors import ProtocolError

START_TIMEOUT_S: Final = 60.0
"""From the start of the interpreter to its first line; torch is loaded later."""
SILENCE_TIMEOUT_S: Final = 1800.0
"""A job that reports nothing for so long hangs: one forward call, or the loading of a model, is far shorter."""
CANCEL_GRACE_S: Final = 30.0
"""A cancelled job ends at its next block boundary, or is killed after so long. Nothing stored is lost by that."""

GOOD_NEIGHBOUR: Final = {"OMP_WAIT_POLICY": "PASSIVE"}
"""A worker computes in the background. Threads that spin at barriers, OpenMP's default, cost it more than
half of its speed, and its neighbours theirs, as soon as something else wants the same cores."""

logger = logging.getLogger(__name__)


class WorkerDiedError(Exception):
    """The worker ended, hung or spoke nonsense; it is gone now."""


class WorkerProcess:
    """One running worker. Made by `start`, ended by `stop` or `kill`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._killer: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, home: Home) -> WorkerProcess:
        """Raises WorkerDiedError when no worker comes up."""
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "kvsync.daemon.worker"),
                *("--home", str(home.root), "--parent", str(os.getpid())),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_REPORT_BYTES,
                env={**GOOD_NEIGHBOUR, **os.environ},
            )
        except OSError as error:
            raise WorkerDiedError(f"the worker cannot be started: {error.strerror}") from error
        worker = cls(process)
        try:
            first = await worker._report(START_TIMEOUT_S)
            if not isinstance(first, Ready):
                raise await worker._broken("it reported a job before it was ready")
        except asyncio.CancelledError:
            await worker.kill()
            raise
        return worker

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def run(self, job: JobId, params: ComputeParams, report: Callable[[Step], None]) -> Done | Failed:
        """One job from order to end. Raises WorkerDiedError."""
        try:
            await self._send(Run(job, params))
            while True:
                message = await self._report(SILENCE_TIMEOUT_S)
                if isinstance(message, Ready) or message.job != job:
                    raise await self._broken("it reported a job that it was not given")
                if not isinstance(message, Progressed):
                    return message
                report(message.step)
        finally:
            if self._killer is not None:
                self._killer.cancel()
                self._killer = None

    def cancel(self, job: JobId) -> None:
        """Ask for the end of the job; after CANCEL_GRACE_S the worker is killed instead."""
        if self._killer is None and self.alive:
            self._write(Cancel(job))
            self._killer = asyncio.get_running_loop().call_later(CANCEL_GRACE_S, self._kill)

    async def stop(self, grace_s: float) -> None:
        """Let the worker end at a block boundary, or kill it after `grace_s`."""
        self._write(Stop())
        try:
            async with asyncio.timeout(grace_s):
                await self._drained()
        except TimeoutError:
            logger.info("the worker is busy: killed; it goes on at the last stored block next time")
        await self.kill()

    async def kill(self) -> None:
        """End it now and wait until it is gone."""
        self._kill()
        await self._drained()

    def _kill(self) -> None:
        if self.alive:
            self._process.kill()

    async def _drained(self) -> None:
        """Wait for the end; a full pipe must not keep the worker from it."""
        assert self._process.stdout is not None  # noqa: S101 (made with a pipe above)
        while await self._process.stdout.read(MAX_REPORT_BYTES):
            pass
        await self._process.wait()

    def _write(self, order: Order) -> None:
        assert self._process.stdin is not None  # noqa: S101
        self._process.stdin.write(encode(order))

    async def _send(self, order: Order) -> None:
        assert self._process.stdin is not None  # noqa: S101
        try:
            self._write(order)
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise await self._broken("it closed its pipe") from error

    async def _report(self, timeout_s: float) -> Report:
        assert self._process.stdout is not None  # noqa: S101
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._process.stdout.readuntil(b"\n")
        except TimeoutError as error:
            raise await self._broken(f"it reported nothing for {timeout_s:.0f} s") from error
        except asyncio.LimitOverrunError as error:
            raise await self._broken("it wrote a line that is too long") from error
        except asyncio.IncompleteReadError as error:
            await self._process.wait()
            raise WorkerDiedError(f"the worker died {_how(self._process.returncode)}") from error
        try:
            return decode_report(line)
        except ProtocolError as error:
            raise await self._broken(f"it wrote nonsense ({error.code})") from error

    async def _broken(self, what: str) -> WorkerDiedError:
        await self.kill()
        return WorkerDiedError(f"the worker was killed: {what}")


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"of signal {-status}"
    return f"with status {status}"
