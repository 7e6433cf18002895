"""A child process that judges what could hang: patterns, symbolic mathematics, schemas, plug-ins.

One child serves verdict after verdict, since some judges take a second to start. Each has a time limit and the
child an address space limit; one that breaks either is killed and the next verdict starts another. The code that
runs in it is trusted (kvsync's own and installed plug-ins); only what it reads is not.
"""

from __future__ import annotations

import atexit
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from kvsync.errors import UnavailableError, UsageError
from kvsync.library.verifiers.verifier import Verdict
from kvsync_protocol.limits import GiB, MiB

START_S = 60  # seconds that a child may take to import what it needs, on a busy host
MAX_REPLY_BYTES = 1 * MiB


class TimedOut(Exception):  # noqa: N818 (an outcome, no fault: it becomes a verdict)
    """No reply in time; the child is gone."""


class Died(Exception):  # noqa: N818 (likewise)
    """The child ended instead of replying."""


class Worker:
    """One child for one kind of judge, started when first asked. Any thread may ask; one is served at a time."""

    def __init__(self, judge: str, *, memory: int = 2 * GiB) -> None:
        self._judge = judge
        self._memory = memory
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        atexit.register(self.stop)

    def ask(self, question: Mapping[str, object], wall_s: float) -> dict[str, object]:
        """The child's reply to `question`.

        Raises:
            TimedOut, Died: the judge did not manage.
            UsageError: what the judge says is wrong with the question: a parameter, a missing extra.
            UnavailableError: `verifier.start` when no child can be started.
        """
        with self._lock:
            child = self._child
            if child is None or child.poll() is not None:
                child = self._start()
            try:
                reply = _exchange(child, {**question, "wall_s": wall_s}, wall_s)
            except BaseException:
                self._kill()
                raise
        error = reply.get("error")
        if isinstance(error, dict):
            raise UsageError(str(error["code"]), str(error["message"]), hint=str(error.get("hint", "")))
        return reply

    def stop(self) -> None:
        with self._lock:
            self._kill()

    def _start(self) -> subprocess.Popen[bytes]:
        self._kill()
        try:
            self._child = child = subprocess.Popen(
                [sys.executable, "-P", "-m", "kvsync.library.verifiers.judge", self._judge, str(self._memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            _read(child, START_S)
        except (OSError, TimedOut, Died) as error:
            self._kill()
            raise UnavailableError("verifier.start", f"the {self._judge} judge's process cannot start") from error
        return child

    def _kill(self) -> None:
        """End the child and everything it started in its session's group."""
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _exchange(child: subprocess.Popen[bytes], question: Mapping[str, object], wall_s: float) -> dict[str, object]:
    if child.stdin is None:
        raise Died
    try:
        child.stdin.write(json.dumps(question).encode() + b"\n")
        child.stdin.flush()
    except BrokenPipeError as error:
        raise Died from error
    return _read(child, wall_s)


def _read(child: subprocess.Popen[bytes], wall_s: float) -> dict[str, object]:
    """One line, as a JSON object."""
    if child.stdout is None:
        raise Died
    stream, data = child.stdout.fileno(), bytearray()
    deadline = time.monotonic() + wall_s
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not selector.select(left):
                raise TimedOut
            piece = os.read(stream, 64 * 1024)
            if not piece or len(data) > MAX_REPLY_BYTES:
                raise Died
            data += piece
    try:
        found = json.loads(data)
    except ValueError as error:
        raise Died from error
    return found if isinstance(found, dict) else {}


_workers: dict[tuple[str, int], Worker] = {}
_workers_lock = threading.Lock()


def worker(judge: str, *, memory: int = 2 * GiB) -> Worker:
    """This process's worker for `judge`."""
    with _workers_lock:
        return _workers.setdefault((judge, memory), Worker(judge, memory=memory))


def bounded_verdict(judge: Worker, question: Mapping[str, object], wall_s: int) -> Verdict:
    """The child's verdict; running out of time or memory is one too, and does not pass."""
    try:
        return Verdict.from_dict(judge.ask(question, wall_s))
    except TimedOut:
        return Verdict.of(False, f"no verdict within {wall_s} s")
    except Died:
        return Verdict.of(False, "the judge ended without a verdict")
