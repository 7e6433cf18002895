"""The supervisor and its real worker: given up after crashes, let go when idle."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from kvsync.config import Home
from kvsync.daemon import supervisor as supervisor_module
from kvsync.daemon.board import JobBoard
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.jobs import MAX_ATTEMPTS, JobQueue
from kvsync.daemon.messages import JobId, JobKind, JobState, Submission, new_job_id
from kvsync.daemon.params import ComputeParams
from kvsync.daemon.supervisor import Supervisor
from kvsync.errors import UnavailableError

PARAMS = ComputeParams(Path("/absent/model"), text="a")


def test_a_job_whose_worker_dies_every_time_fails_and_the_daemon_stays(
    home: Home, start: Callable[[Home], int]
) -> None:
    pid = start(home)
    (home.keys_dir / "signer.key").unlink()  # no worker can start any more
    client = DaemonClient(home)
    job = client.submit(JobKind.COMPUTE, PARAMS)
    with pytest.raises(UnavailableError) as caught:
        client.wait(job)
    assert caught.value.code == "job.crashed"
    assert client.job(job).attempts == MAX_ATTEMPTS
    assert home.log_file.read_text().count("the worker died with status 1") == MAX_ATTEMPTS
    assert client.status()["pid"] == pid


@asynccontextmanager
async def supervising(home: Home) -> AsyncIterator[tuple[JobBoard, Supervisor]]:
    """A supervisor at work in this loop; afterwards its worker is gone."""
    with closing(JobQueue.open(home.jobs_file)) as queue:
        board = JobBoard(queue)
        supervisor = Supervisor(board, home)
        running = asyncio.create_task(supervisor.run())
        try:
            async with asyncio.timeout(120):
                yield board, supervisor
        finally:
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        assert supervisor.pid is None


def submit(board: JobBoard) -> JobId:
    return board.submit(Submission(new_job_id(), JobKind.COMPUTE, PARAMS.as_json())).id


async def test_a_job_can_be_cancelled_between_two_attempts(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor_module, "FIRST_PAUSE_S", 600.0)
    (home.keys_dir / "signer.key").unlink()
    async with supervising(home) as (board, supervisor):
        job = submit(board)
        async for state in board.watch(job, heartbeat_s=60):
            if state.attempts == 1 and state.state is JobState.QUEUED:
                break
        assert board.cancel(job).state is JobState.CANCELLED
        assert supervisor.state == "waiting"


async def test_an_idle_worker_is_let_go_and_a_new_one_does_the_next_job(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_module, "IDLE_S", 0.2)
    async with supervising(home) as (board, supervisor):
        job = submit(board)
        last = [state async for state in board.watch(job, heartbeat_s=60)][-1]
        assert last.failure is not None
        assert last.failure.code == "model.missing"
        first = supervisor.pid
        assert first is not None
        await end_of(first)
        monkeypatch.setattr(supervisor_module, "IDLE_S", 600.0)
        job = submit(board)
        async for state in board.watch(job, heartbeat_s=60):
            if state.state is JobState.RUNNING:
                board.cancel(job)  # while the new worker starts
        assert board.get(job).state is JobState.CANCELLED
        assert supervisor.pid not in (None, first)


async def end_of(pid: int) -> None:
    """Wait until a process has ended."""
    process = os.pidfd_open(pid)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(process, ended.set)
    await ended.wait()
    asyncio.get_running_loop().remove_reader(process)
    os.close(process)
