"""The worker process: runs compute jobs one after the other. The only process of a daemon that loads torch.

Started by the supervisor as `python -m kvsync.daemon.worker`; takes orders on stdin, reports on stdout
(pipe.py), logs to stderr. Keeps the last engine, so that the next job of the same model starts at once.
Dies with its daemon. What it has computed is in the store's journal block by block, so it may be killed at
any moment.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from kvsync import log
from kvsync.config import Home, Settings
from kvsync.daemon.messages import JobId, Step
from kvsync.daemon.params import ComputeParams
from kvsync.daemon.pipe import (
    MAX_ORDER_BYTES,
    Cancel,
    Done,
    Failed,
    Order,
    Progressed,
    Ready,
    Report,
    Run,
    decode_order,
    encode,
)
from kvsync.errors import KvsyncError
from kvsync.failure import Failure
from kvsync.keys import NodeKeys
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError, ProtocolError

if TYPE_CHECKING:
    from kvsync.engines.engine import Engine

STEP_INTERVAL_S: Final = 0.1
PR_SET_PDEATHSIG: Final = 1

logger = logging.getLogger(__name__)


class Interrupted(KvsyncError):  # noqa: N818 (it is no fault)
    """The job ends early because somebody asked for it."""


class Orders:
    """What arrives on stdin, read by a thread so that it is seen during a computation."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source
        self._runs: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._cancelled: JobId | None = None
        self.stopping = False
        threading.Thread(target=self._read, name="orders", daemon=True).start()

    def next(self) -> Run | None:
        """The next job; None when there will be no more."""
        return self._runs.get()

    def check(self, job: JobId) -> None:
        """Raises Interrupted when this job shall not go on."""
        if self.stopping:
            raise Interrupted("job.stopped", "the daemon is stopping")
        if self._cancelled == job:
            raise Interrupted("job.cancelled", "the job was cancelled")

    def _read(self) -> None:
        while (order := self._next()) is not None:
            if isinstance(order, Run):
                self._runs.put(order)
            elif isinstance(order, Cancel):
                self._cancelled = order.job
            else:
                break
        self.stopping = True
        self._runs.put(None)

    def _next(self) -> Order | None:
        """None at the end of the pipe, or at what no daemon of this version writes."""
        line = self._source.readline(MAX_ORDER_BYTES)
        if not line:
            return None
        try:
            return decode_order(line)
        except (ProtocolError, KvsyncError) as error:
            logger.error("an order cannot be read: %s", error)
            return None


class Reports:
    """Writes to the daemon; when nobody listens any more, there is nothing left to work for."""

    def __init__(self, sink: BinaryIO) -> None:
        self._sink = sink

    def send(self, report: Report) -> None:
        try:
            self._sink.write(encode(report))
            self._sink.flush()
        except BrokenPipeError as error:
            raise SystemExit(0) from error


class Worker:
    """Runs jobs against one home's store with one home's signer."""

    def __init__(self, home: Home, orders: Orders, reports: Reports) -> None:
        self._home = home
        self._settings = Settings.load(home)
        self._keys = NodeKeys.load(home)
        self._orders = orders
        self._reports = reports
        self._loaded: tuple[object, Engine] | None = None

    def serve(self) -> None:
        """Until stdin ends."""
        self._reports.send(Ready())
        while (order := self._orders.next()) is not None:
            report = self._attempt(order)
            if report is not None:
                self._reports.send(report)

    def _attempt(self, order: Run) -> Report | None:
        try:
            return Done(order.job, self._compute(order.job, order.params))
        except Interrupted as stopped:
            return None if self._orders.stopping else Failed(order.job, Failure.of(stopped))
        except CodedError as error:
            return Failed(order.job, Failure.of(error))
        except Exception as error:
            logger.exception("job %s", order.job)
            self._loaded = None  # whatever state it is in
            unexpected = KvsyncError(
                "job.unexpected", f"{type(error).__name__}: {error}", hint=f"see {self._home.daemon_dir}/daemon.log"
            )
            return Failed(order.job, Failure.of(unexpected))

    def _compute(self, job: JobId, params: ComputeParams) -> dict[str, object]:
        from kvsync.graft.costs import Costs
        from kvsync.graft.deposit import deposit
        from kvsync.store import Store, StoreLimits

        began = time.monotonic()
        progress = _Throttled(job, self._orders, self._reports)
        progress("loading", 0, 1, "model")
        engine = self._engine(params)
        progress("loading", 1, 1, "model")
        tokens = engine.encode(params.text) if params.text is not None else list(params.tokens or ())
        if params.asked is not None:
            params.asked.check(engine.fingerprints, len(tokens))
        started, costs = time.monotonic(), Costs(self._home)
        with Store.open(self._home.store_dir, StoreLimits.of(self._settings)) as store:
            stored = deposit(
                store,
                engine,
                self._keys.current().signer,
                tokens,
                text=None if params.text is None else sha256(params.text.encode()),
                template=params.template,
                boundaries=params.boundaries,
                name=params.name,
                progress=progress,
                costs=costs,
            )
        costs.save()
        return {
            "artifact": str(stored.artifact),
            "name": params.name,
            "tokens": stored.manifest.tokens.count,
            "bytes": stored.bytes,
            "seconds": time.monotonic() - began,
            "tokens_computed": progress.tokens,
            "tokens_per_s": progress.tokens / (time.monotonic() - started),
        }

    def _engine(self, params: ComputeParams) -> Engine:
        from kvsync.engines.registry import load_engine

        wanted = (params.model, params.dtype, params.device, _stamp(params.model))
        if self._loaded is None or self._loaded[0] != wanted:
            self._loaded = None
            gc.collect()  # two models at once may not fit
            engine = load_engine(
                params.model, dtype=params.dtype, device=params.device, threads=self._settings.threads
            )
            self._loaded = (wanted, engine)
        return self._loaded[1]


class _Throttled:
    """A progress that reports ten times a second, and is the place where a job ends early.

    `tokens` is how many were computed in this attempt: those a killed one left in the store do not count.
    """

    def __init__(self, job: JobId, orders: Orders, reports: Reports) -> None:
        self._job = job
        self._orders = orders
        self._reports = reports
        self._stage = ""
        self._sent = 0.0
        self.tokens = 0

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        self._orders.check(self._job)
        if unit == "tokens":
            self.tokens = done
        now = time.monotonic()
        if stage == self._stage and done < total and now - self._sent < STEP_INTERVAL_S:
            return
        self._stage, self._sent = stage, now
        self._reports.send(Progressed(self._job, Step(stage, done, total, unit)))


def _stamp(model: Path) -> object:
    """Changes when the model's files do, so that an engine of older weights is not used again."""
    try:
        with os.scandir(model) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None  # loading it will say what is wrong
    return sorted((name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in found)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the daemon dies, however it dies."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was faster
        raise SystemExit(0)


def _take_stdout() -> BinaryIO:
    """The pipe to the daemon; whatever a library prints goes to the log instead."""
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return sink


def main() -> int:
    """Serve the daemon that started this process."""
    parser = argparse.ArgumentParser(prog="kvsync-worker")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--parent", type=int, required=True)
    words = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the daemon, which then stops this process
    _die_with(words.parent)
    log.configure()
    reports = Reports(_take_stdout())
    try:
        Worker(Home(words.home), Orders(sys.stdin.buffer), reports).serve()
    except CodedError as error:
        logger.error("%s (%s)", error.message, error.code)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    os._exit(status)  # without waiting for the thread that reads orders
