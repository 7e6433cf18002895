"""The two ends of the worker's pipes against programs that break the rules."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsync.config import Home
from kvsync.daemon import process as process_module
from kvsync.daemon.messages import new_job_id
from kvsync.daemon.params import ComputeParams
from kvsync.daemon.pipe import MAX_REPORT_BYTES, Done, Run, encode
from kvsync.daemon.process import WorkerDiedError, WorkerProcess

JOB = new_job_id()
PARAMS = ComputeParams(Path("/absent/model"), text="a")


async def program(code: str) -> WorkerProcess:
    """A worker that does what `code` says; `job` is the id of the job it is given."""
    head = f"import sys, time, os\njob = {JOB!r}\nsay = lambda text: print(text, flush=True)\n"
    return WorkerProcess(
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", head + code),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_REPORT_BYTES,
        )
    )


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("say('Traceback (most recent call last):'); time.sleep(60)", "nonsense (json.syntax)"),
        ("say('{}'); time.sleep(60)", "nonsense (pipe.missing)"),
        ("sys.stdout.buffer.write(b'\\xff\\xfe\\n'); sys.stdout.flush(); time.sleep(60)", "nonsense (json.encoding)"),
        ('say(\'{"type":"ready"}\'); time.sleep(60)', "a job that it was not given"),
        (
            'say(\'{"type":"done","job":"0123456789abcdef","result":{}}\'); time.sleep(60)',
            "a job that it was not given",
        ),
        (f"sys.stdout.write('x' * {MAX_REPORT_BYTES * 3}); sys.stdout.flush(); time.sleep(60)", "too long"),
        ("os.write(1, b'{\"type\":'); os._exit(3)", "died with status 3"),
        ("os._exit(0)", "died with status 0"),
        ("os.kill(os.getpid(), 9)", "died of signal 9"),
        ("os.close(0); time.sleep(0.2); os.kill(os.getpid(), 11)", "died of signal 11"),
    ],
)
async def test_a_worker_that_breaks_the_rules_is_gone_and_the_reason_known(code: str, reason: str) -> None:
    worker = await program(code)
    async with asyncio.timeout(30):
        with pytest.raises(WorkerDiedError) as caught:
            await worker.run(JOB, PARAMS, lambda step: None)
    assert reason in str(caught.value)
    assert not worker.alive


async def test_a_worker_that_reports_nothing_for_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "SILENCE_TIMEOUT_S", 0.2)
    worker = await program("time.sleep(60)")
    with pytest.raises(WorkerDiedError) as caught:
        await worker.run(JOB, PARAMS, lambda step: None)
    assert "reported nothing" in str(caught.value)
    assert not worker.alive


async def test_a_job_that_does_not_end_when_cancelled_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "CANCEL_GRACE_S", 0.2)
    worker = await program("time.sleep(60)")
    running = asyncio.create_task(worker.run(JOB, PARAMS, lambda step: None))
    await asyncio.sleep(0)
    worker.cancel(JOB)
    worker.cancel(JOB)
    async with asyncio.timeout(30):
        with pytest.raises(WorkerDiedError):
            await running


async def test_stopping_a_worker_that_does_not_listen_kills_it_and_a_full_pipe_is_no_obstacle() -> None:
    for code in ("time.sleep(60)", "while True: say('{}' * 1000)"):
        worker = await program(code)
        async with asyncio.timeout(30):
            await worker.stop(0.2)
        assert not worker.alive


async def test_a_real_worker_comes_up_and_ends_when_told(home: Home) -> None:
    worker = await WorkerProcess.start(home)
    assert worker.alive
    async with asyncio.timeout(60):
        await worker.stop(600)
    assert not worker.alive


async def test_a_worker_without_a_home_does_not_come_up(tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError) as caught:
        await WorkerProcess.start(Home(tmp_path / "absent"))
    assert "status 1" in str(caught.value)


def real_worker(home: Home, parent: int) -> subprocess.Popen[bytes]:
    words = ["-P", "-m", "kvsync.daemon.worker", "--home", str(home.root), "--parent", str(parent)]
    return subprocess.Popen([sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize("noise", [b"", b"nonsense\n", b"{}\n", b'{"type":"run"}\n', b"\xff" * 100])
def test_a_worker_ends_at_the_end_of_its_orders_or_at_nonsense(home: Home, noise: bytes) -> None:
    with real_worker(home, os.getpid()) as worker:
        out, _ = worker.communicate(noise, timeout=60)
    assert out == b'{"type":"ready"}\n'
    assert worker.returncode == 0


def test_a_worker_whose_daemon_is_already_gone_does_nothing(home: Home) -> None:
    with real_worker(home, 1) as worker:
        out, _ = worker.communicate(timeout=60)
    assert (out, worker.returncode) == (b"", 0)


def test_a_worker_dies_with_its_daemon_even_in_the_middle_of_a_call(home: Home) -> None:
    """The parent is killed while the worker's stdin stays open: only the kernel's signal can end it."""
    code = (
        "import subprocess, sys, os, time\n"
        "words = ['-P', '-m', 'kvsync.daemon.worker', '--home', sys.argv[1], '--parent', str(os.getpid())]\n"
        "worker = subprocess.Popen([sys.executable, *words], stdin=0, stdout=subprocess.PIPE)\n"
        "worker.stdout.readline()\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    read, write = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-c", code, str(home.root)], stdin=read, stdout=subprocess.PIPE
        ) as parent:
            assert parent.stdout is not None
            worker = os.pidfd_open(int(parent.stdout.readline()))
            parent.kill()
        import select

        poller = select.poll()
        poller.register(worker, select.POLLIN)
        assert poller.poll(30_000)
        os.close(worker)
    finally:
        os.close(read)
        os.close(write)


def test_orders_and_reports_of_a_real_worker_go_through_the_pipe_alone(home: Home) -> None:
    """Whatever a library prints ends up in the log."""
    code = (
        "import os, sys\n"
        "from kvsync.daemon.worker import _take_stdout\n"
        "sink = _take_stdout()\n"
        "print('from a library', flush=True)\n"
        "os.write(1, b'from C\\n')\n"
        "sink.write(b'report\\n')\n"
        "sink.close()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert found.stdout == b"report\n"
    assert found.stderr == b"from a library\nfrom C\n"


def test_a_done_job_is_one_line() -> None:
    assert encode(Done(JOB, {"artifact": "a\nb"})).count(b"\n") == 1
    assert encode(Run(JOB, ComputeParams(Path("/m"), "a\nb"))).count(b"\n") == 1
