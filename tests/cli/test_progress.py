"""Bars on a terminal, silence elsewhere, and an end in order when the user gives up."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from kvsync.cli._progress import bars, rate
from kvsync.cli._render import Terminal
from kvsync.config import Home
from kvsync.daemon.client import DaemonClient
from kvsync.progress import silent


class FakeTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("done", "elapsed", "unit", "shown"),
    [
        (1000, 2.0, "tokens", "500 tokens/s"),
        (64_000_000, 0.5, "bytes", "128.0 MB/s"),
        (0, 1.0, "bytes", ""),
        (3, 1.0, "files", ""),
        (5, 0.0, "tokens", ""),
    ],
)
def test_rates_are_told_in_the_unit_of_the_work(done, elapsed, unit, shown):
    assert rate(done, elapsed, unit) == shown


def test_each_stage_gets_a_bar_whichever_thread_reports():
    stream = FakeTerminal()
    with bars(stream) as progress:
        progress("compute", 0, 300, "tokens")
        progress("pull", 10, 20, "bytes")
        reporters = [threading.Thread(target=progress, args=("compute", 300, 300, "tokens")) for _ in range(4)]
        for reporter in reporters:
            reporter.start()
        for reporter in reporters:
            reporter.join()
        progress("pull", 20, 20, "bytes")
    drawn = stream.getvalue()
    assert "compute" in drawn
    assert "pull" in drawn
    assert "100 %" in drawn
    assert "tokens/s" in drawn


def test_a_stage_that_begins_anew_has_the_rate_of_what_is_done_since(monkeypatch):
    counted = []
    monkeypatch.setattr("kvsync.cli._progress.rate", lambda done, elapsed, unit: counted.append(done) or "")
    with bars(FakeTerminal()) as progress:
        for done in (1, 201, 1, 5, 300):
            progress("decode", done, 300, "tokens")
    assert counted == [0, 200, 0, 4, 299]


@pytest.mark.parametrize(
    ("stream", "settings"),
    [
        (io.StringIO(), {}),
        (FakeTerminal(), {"quiet": True}),
        (FakeTerminal(), {"as_json": True}),
    ],
    ids=["no terminal", "quiet", "json"],
)
def test_nothing_is_drawn_where_nobody_looks(stream, settings):
    with Terminal(err=stream, **settings).progress() as progress:
        assert progress is silent
    assert stream.getvalue() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_giving_up_cancels_the_daemon_s_job(kvsync, home, tmp_path, tiny_model_dir, number):
    document = tmp_path / "long.txt"
    document.write_text("w1 w2 w3 w4 " * 8000)
    kvsync("daemon", "start")
    client = DaemonClient(Home(home))
    try:
        command = [sys.executable, "-m", "kvsync.cli", "compute", str(document), "--model", str(tiny_model_dir)]
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, env=os.environ) as process:
            while not client.jobs():
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(number)
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 130
        assert b'"run.interrupted"' in out
        [job] = client.jobs()
        last = next(state for state in client.events(job.id) if state.state.final)
        assert last.state.value == "cancelled"
    finally:
        kvsync("daemon", "stop")
