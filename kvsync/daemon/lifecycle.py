"""Start, stop and look at the daemon of a home. Imports neither aiohttp nor torch until `run`.

The new daemon says through a pipe that it is ready, or why it is not; its end is awaited through a pidfd.
Nothing here polls, and no process is signalled that does not hold the home's lock.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Final

from kvsync.config import Home
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.messages import Status
from kvsync.daemon.pidlock import Holder
from kvsync.errors import KvsyncError, UnavailableError
from kvsync.failure import Failure
from kvsync.files import make_private_dir, write_error
from kvsync_protocol import strictjson
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import KiB, MiB
from kvsync_protocol.strictjson import Fields

if TYPE_CHECKING:
    from kvsync_protocol.errors import CodedError

START_TIMEOUT_S: Final = 60.0
"""Opening a store whose index must be rebuilt takes longest."""
STOP_TIMEOUT_S: Final = 45.0
TERMINATE_TIMEOUT_S: Final = 15.0
MAX_LOG_BYTES: Final = 8 * MiB
"""A larger log is put aside at the next start; one older log is kept."""
MAX_WORD_BYTES: Final = 64 * KiB


def start(home: Home, *, timeout_s: float = START_TIMEOUT_S) -> dict[str, object]:
    """Start a daemon in the background; return its status once it is ready.

    Raises:
        StoreError: `home.*`, `keys.*`, `store.*`, `jobs.*`.
        UsageError: `config.*`.
        UnavailableError: `daemon.already_running`, `peer.listen`, `daemon.start_failed`, `daemon.not_ready`.
    """
    home.require()
    make_private_dir(home.daemon_dir)
    log = _open_log(home)
    told, word = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "kvsync.daemon", "--home", str(home.root), "--ready-fd", str(word)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            pass_fds=[word],
            start_new_session=True,
        ):
            pass  # it forks and ends at once, so that the daemon is nobody's child
        os.close(word)
        word = -1
        return _await_ready(home, told, timeout_s)
    finally:
        for descriptor in (log, told, word):
            if descriptor >= 0:
                os.close(descriptor)


def stop(home: Home, *, timeout_s: float = STOP_TIMEOUT_S) -> int:
    """End the daemon in order and wait for it; returns the pid it had.

    Raises:
        UnavailableError: `daemon.not_running`, `daemon.stop_timeout`.
    """
    holder = Holder.find(home.pid_file)
    if holder is None:
        raise UnavailableError("daemon.not_running", "no daemon runs here", hint="kvsync daemon start")
    with closing(holder):
        try:
            DaemonClient(home).shutdown()
        except (KvsyncError, ProtocolError):  # it cannot be asked, so it is told
            holder.terminate()
        if not holder.wait(timeout_s):
            holder.terminate()
            if not holder.wait(TERMINATE_TIMEOUT_S):
                raise UnavailableError(
                    "daemon.stop_timeout",
                    f"the daemon with pid {holder.pid} does not end",
                    hint=f"kill -9 {holder.pid}; nothing stored is lost by that",
                    pid=holder.pid,
                )
        return holder.pid


def status(home: Home) -> dict[str, object] | None:
    """The running daemon's status, None when none runs. Raises as `DaemonClient`, `daemon.not_running` aside."""
    try:
        return DaemonClient(home).status()
    except UnavailableError as error:
        if error.code == "daemon.not_running":
            return None
        raise


def run(home: Home, ready: Callable[[Status], None] = lambda status: None) -> None:
    """Be the daemon, in this process, until SIGTERM, SIGINT or a client's request. Raises as `app.serve`."""
    import asyncio

    from kvsync.daemon.app import serve

    asyncio.run(serve(home, ready))


def ready_word(status: Status) -> bytes:
    """What a started daemon writes into its starter's pipe."""
    return strictjson.dumps({"status": status.as_json()})


def failure_word(error: CodedError) -> bytes:
    """What a daemon that cannot start writes there."""
    return strictjson.dumps({"error": Failure.of(error).as_json()})


def _await_ready(home: Home, told: int, timeout_s: float) -> dict[str, object]:
    """Read the daemon's first and only word."""
    deadline = time.monotonic() + timeout_s
    poller = select.poll()
    poller.register(told, select.POLLIN)
    word = bytearray()
    while len(word) <= MAX_WORD_BYTES:
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            _give_up(home)
            raise UnavailableError(
                "daemon.not_ready", f"the daemon was not ready after {timeout_s:.0f} s", hint=f"see {home.log_file}"
            )
        data = os.read(told, MAX_WORD_BYTES)
        if not data:
            break
        word += data
    if not word:
        raise UnavailableError("daemon.start_failed", "the daemon ended at once", hint=f"see {home.log_file}")
    fields = Fields(strictjson.loads(bytes(word), limit=MAX_WORD_BYTES, what="the daemon's word"), "daemon")
    failure = fields.optional("error", lambda name: Failure.parse(fields.take(name)))
    if failure is not None:
        raise failure.error()
    return Status.parse(fields.mapping("status")).as_json()


def _give_up(home: Home) -> None:
    """End a daemon that has the lock; one that has not got that far ends when it finds its pipe closed."""
    holder = Holder.find(home.pid_file)
    if holder is not None:
        with closing(holder):
            holder.terminate()


def _open_log(home: Home) -> int:
    """The log, for appending, for this user alone. Raises StoreError `store.*`."""
    path = home.log_file
    try:
        if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
            path.rename(path.with_name("daemon.log.1"))
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise write_error(error, path) from error
