"""One daemon a home: the kernel's lock decides, a number in a file never does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from kvsync.daemon.pidlock import Holder, PidLock
from kvsync.errors import StoreError, UnavailableError

HOLD = (
    "import sys, pathlib, signal\n"
    "from kvsync.daemon.pidlock import PidLock\n"
    "lock = PidLock.take(pathlib.Path(sys.argv[1]))\n"
    "print('held', flush=True)\n"
    "signal.pause()\n"
)


@contextmanager
def other_process(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pid"


def test_a_second_daemon_is_refused_and_told_who_the_first_is(path: Path) -> None:
    with other_process(path) as process:
        with pytest.raises(UnavailableError) as caught:
            PidLock.take(path)
        assert caught.value.code == "daemon.already_running"
        assert str(process.pid) in caught.value.message
        assert path.read_text() == f"{process.pid}\n"


@pytest.mark.parametrize("content", ["", "1\n", "own", "nonsense"])
def test_a_stale_file_names_nobody(path: Path, content: str) -> None:
    content = f"{os.getpid()}\n" if content == "own" else content
    path.write_text(content)
    assert Holder.find(path) is None
    with closing(PidLock.take(path)):
        assert path.read_text() == f"{os.getpid()}\n"


def test_without_a_file_nobody_holds_it(path: Path) -> None:
    assert Holder.find(path) is None
    assert not path.exists()


def test_the_lock_goes_with_a_killed_process(path: Path) -> None:
    with other_process(path) as process:
        process.kill()
        process.wait()
        assert Holder.find(path) is None
        PidLock.take(path).close()


def test_the_holder_is_the_process_with_the_lock_whatever_the_file_says(path: Path) -> None:
    with other_process(path) as process:
        path.write_text("1\n")
        holder = Holder.find(path)
        assert holder is not None
        with closing(holder):
            assert holder.pid == process.pid


def test_a_holder_is_ended_and_awaited(path: Path) -> None:
    with other_process(path) as process:
        holder = Holder.find(path)
        assert holder is not None
        with closing(holder):
            assert not holder.wait(0.05)
            waiter = threading.Timer(0.2, holder.terminate)
            waiter.start()
            assert holder.wait(30)
            waiter.join()
            assert process.wait() == -signal.SIGTERM
            holder.terminate()  # of one that has ended: nothing
            assert holder.wait(0)


def test_a_link_is_not_followed(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        PidLock.take(path)
    assert Holder.find(path) is None
    assert not (tmp_path / "elsewhere").exists()
