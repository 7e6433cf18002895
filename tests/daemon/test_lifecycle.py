"""Daemon processes from start to stop, and after every way of dying."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from kvsync.config import Home, Settings
from kvsync.daemon import lifecycle
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.messages import JobKind
from kvsync.daemon.pidlock import Holder
from kvsync.daemon.transfer_params import PullParams
from kvsync.errors import StoreError, UnavailableError
from kvsync.keys import split_address
from kvsync_protocol.errors import CodedError

Start = Callable[[Home], int]


def test_a_daemon_starts_answers_and_stops(home: Home, start: Start) -> None:
    assert lifecycle.status(home) is None
    pid = start(home)
    status = lifecycle.status(home)
    assert status is not None
    assert (status["pid"], status["home"], status["worker"]) == (pid, str(home.root), "absent")
    with socket.create_connection(split_address(str(status["address"])), timeout=10):
        pass  # the peer listener is up when start returns
    assert lifecycle.stop(home) == pid
    assert lifecycle.status(home) is None
    assert Holder.find(home.pid_file) is None
    assert not home.socket.exists()


def test_what_the_daemon_leaves_on_disk_is_private(home: Home, start: Start) -> None:
    start(home)
    for path in home.daemon_dir.iterdir():
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600, path


def test_the_daemon_is_nobody_s_child_and_holds_no_terminal_and_no_torch(home: Home, start: Start) -> None:
    pid = start(home)
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    assert os.getsid(pid) != os.getsid(0)
    assert Path(f"/proc/{pid}/fd/0").readlink() == Path("/dev/null")
    assert "torch" not in Path(f"/proc/{pid}/maps").read_text()


def test_a_second_daemon_is_refused_and_the_first_stays(home: Home, start: Start) -> None:
    pid = start(home)
    with pytest.raises(UnavailableError) as caught:
        lifecycle.start(home)
    assert caught.value.code == "daemon.already_running"
    assert str(pid) in caught.value.message
    assert DaemonClient(home).status()["pid"] == pid


def test_two_daemons_of_two_homes_do_not_meet(new_home: Callable[..., Home], start: Start) -> None:
    one, other = new_home("one"), new_home("other")
    assert start(one) != start(other)
    lifecycle.stop(one)
    assert lifecycle.status(one) is None
    assert lifecycle.status(other) is not None


def test_what_a_killed_daemon_leaves_is_no_obstacle(home: Home, start: Start, kill: Callable[[Home], None]) -> None:
    first = start(home)
    job = DaemonClient(home).submit(JobKind.PULL, PullParams("nobody", "x"))
    with pytest.raises(CodedError):
        DaemonClient(home).wait(job)
    kill(home)
    assert home.socket.is_socket()
    assert home.pid_file.read_text() == f"{first}\n"
    assert lifecycle.status(home) is None
    with pytest.raises(UnavailableError) as caught:
        lifecycle.stop(home)
    assert caught.value.code == "daemon.not_running"
    assert start(home) != first
    assert DaemonClient(home).job(job).failure is not None


def test_stop_signals_no_process_that_merely_has_the_recorded_number(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as bystander:
        home.pid_file.write_text(f"{bystander.pid}\n")
        with pytest.raises(UnavailableError) as caught:
            lifecycle.stop(home)
        assert caught.value.code == "daemon.not_running"
        assert bystander.poll() is None
        bystander.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_order(home: Home, start: Start, number: signal.Signals) -> None:
    pid = start(home)
    with closing(Holder.find(home.pid_file) or pytest.fail("nobody holds the lock")) as holder:
        os.kill(pid, number)
        assert holder.wait(30)
    assert not home.socket.exists()
    assert "stopped" in home.log_file.read_text()


def test_a_daemon_that_cannot_be_asked_is_told_by_signal(home: Home, start: Start) -> None:
    pid = start(home)
    home.socket.unlink()
    assert lifecycle.status(home) is None
    assert lifecycle.stop(home) == pid
    assert Holder.find(home.pid_file) is None


def test_a_daemon_that_does_not_end_is_reported_and_not_killed(
    home: Home, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvsync.daemon import client

    pid = start(home)
    os.kill(pid, signal.SIGSTOP)
    try:
        monkeypatch.setattr(client, "REQUEST_TIMEOUT_S", 0.2)
        monkeypatch.setattr(lifecycle, "TERMINATE_TIMEOUT_S", 0.2)
        with pytest.raises(UnavailableError) as caught:
            lifecycle.stop(home, timeout_s=0.2)
        assert caught.value.code == "daemon.stop_timeout"
        assert f"kill -9 {pid}" in caught.value.hint
    finally:
        os.kill(pid, signal.SIGCONT)
    with closing(Holder.find(home.pid_file) or pytest.fail("it is gone already")) as holder:
        assert holder.wait(30)  # the signal it was sent reaches it now


def test_a_home_too_deep_for_a_socket_s_name_works_all_the_same(new_home: Callable[..., Home], start: Start) -> None:
    home = new_home("/".join(["a-rather-long-name-of-a-directory"] * 5))
    assert len(os.fsencode(home.socket)) > 107
    pid = start(home)
    assert DaemonClient(home).status()["pid"] == pid
    assert lifecycle.stop(home) == pid


def test_a_taken_port_is_named(new_home: Callable[..., Home]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        home = new_home(settings=Settings(listen_port=port))
        with pytest.raises(UnavailableError) as caught:
            lifecycle.start(home)
    assert caught.value.code == "peer.listen"
    assert str(port) in caught.value.message
    assert Holder.find(home.pid_file) is None


def break_home(home: Home) -> None:
    (home.keys_dir / "signer.key").unlink()


def open_home(home: Home) -> None:
    home.store_dir.chmod(0o755)


def open_key(home: Home) -> None:
    (home.keys_dir / "peer.key").chmod(0o644)


def wrong_setting(home: Home) -> None:
    home.config_file.write_text("listen_prot = 1\n")


def damaged_queue(home: Home) -> None:
    home.jobs_file.write_bytes(b"not a database" * 100)


def file_at_the_socket(home: Home) -> None:
    home.socket.write_text("mine")


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (break_home, "home.missing"),
        (open_home, "home.lax_mode"),
        (open_key, "keys.lax_mode"),
        (wrong_setting, "config.unknown"),
        (damaged_queue, "jobs.damaged"),
        (file_at_the_socket, "daemon.socket"),
    ],
)
def test_a_daemon_that_cannot_start_says_why_and_leaves_nothing(
    home: Home, damage: Callable[[Home], None], code: str
) -> None:
    damage(home)
    with pytest.raises(CodedError) as caught:
        lifecycle.start(home)
    assert caught.value.code == code
    assert Holder.find(home.pid_file) is None
    assert lifecycle.status(home) is None


def test_a_start_that_takes_too_long_is_given_up(home: Home) -> None:
    with pytest.raises(UnavailableError) as caught:
        lifecycle.start(home, timeout_s=0.0)
    assert caught.value.code == "daemon.not_ready"


def test_a_daemon_whose_starter_has_given_up_ends(home: Home) -> None:
    told, word = os.pipe()
    os.close(told)
    words = ["-P", "-m", "kvsync.daemon", "--home", str(home.root), "--ready-fd", str(word)]
    with subprocess.Popen([sys.executable, *words], pass_fds=[word], stderr=subprocess.PIPE, text=True) as process:
        os.close(word)
        assert process.stderr is not None
        log = process.stderr.read()  # until the last process that has it ends
    assert "given up" in log
    assert log.rstrip().endswith("stopped")
    assert Holder.find(home.pid_file) is None


def test_the_log_is_appended_to_and_put_aside_when_it_is_large(
    home: Home, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.log_file.write_text("earlier\n")
    start(home)
    lifecycle.stop(home)
    assert home.log_file.read_text().startswith("earlier\n")
    monkeypatch.setattr(lifecycle, "MAX_LOG_BYTES", 7)
    start(home)
    lifecycle.stop(home)
    assert "earlier" not in home.log_file.read_text()
    assert (home.daemon_dir / "daemon.log.1").read_text().startswith("earlier\n")


def test_a_log_in_place_of_a_link_is_not_written_through(home: Home, tmp_path: Path) -> None:
    home.log_file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError):
        lifecycle.start(home)
    assert not (tmp_path / "elsewhere").exists()


def test_the_daemon_runs_in_the_foreground_until_it_is_asked_to_stop(home: Home) -> None:
    code = (
        "import pathlib, sys\n"
        "from kvsync.config import Home\n"
        "from kvsync.daemon import lifecycle\n"
        "lifecycle.run(Home(pathlib.Path(sys.argv[1])), lambda status: print(status.address, flush=True))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert DaemonClient(home).status()["address"] == address
        assert lifecycle.stop(home) == process.pid
    assert process.returncode == 0


def test_a_clock_that_was_never_set_is_a_warning(home: Home) -> None:
    """The daemon's own idea of the time is set back; everything works on."""
    code = (
        "import pathlib, sys, time\n"
        "from kvsync import log\n"
        "from kvsync.config import Home\n"
        "from kvsync.daemon import lifecycle\n"
        "time.time = lambda: 3600.0\n"
        "log.configure()\n"
        "lifecycle.run(Home(pathlib.Path(sys.argv[1])), lambda status: print('ready', flush=True))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        job = DaemonClient(home).submit(JobKind.PULL, PullParams("nobody", "x"))
        with pytest.raises(CodedError) as caught:
            DaemonClient(home).wait(job)
        assert caught.value.code == "peer.unknown"
        lifecycle.stop(home)
        assert "before 2020" in process.stderr.read()
    assert process.returncode == 0
