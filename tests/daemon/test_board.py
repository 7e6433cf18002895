"""The live board: waiting for work, watching, cancelling, progress from threads."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvsync.daemon import board as board_module
from kvsync.daemon.board import JobBoard
from kvsync.daemon.jobs import JobQueue
from kvsync.daemon.messages import Job, JobKind, JobState, Step, Submission, new_job_id
from kvsync.errors import NotFoundError, UnavailableError

PULL: dict[str, object] = {"peer": "lab", "wanted": "x"}
TRANSFERS = [JobKind.PULL, JobKind.PUSH]


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[JobQueue]:
    with closing(JobQueue.open(tmp_path / "jobs.sqlite")) as queue:
        yield queue


@pytest.fixture
async def board(queue: JobQueue) -> JobBoard:
    return JobBoard(queue)


def submit(board: JobBoard) -> Job:
    return board.submit(Submission(new_job_id(), JobKind.PULL, PULL))


async def states(watch: AsyncIterator[Job]) -> list[JobState]:
    return [job.state async for job in watch]


async def test_who_waits_for_work_gets_it_when_it_comes(board: JobBoard) -> None:
    waiting = asyncio.create_task(board.take(TRANSFERS))
    await asyncio.sleep(0)
    job = submit(board)
    async with asyncio.timeout(10):
        taken, _ = await waiting
    assert taken.id == job.id


async def test_one_job_goes_to_one_of_those_who_wait(board: JobBoard) -> None:
    waiting = [asyncio.create_task(board.take(TRANSFERS)) for _ in range(3)]
    await asyncio.sleep(0)
    jobs = {submit(board).id for _ in range(2)}
    async with asyncio.timeout(30):
        while sum(task.done() for task in waiting) < 2:
            await asyncio.wait([task for task in waiting if not task.done()], return_when=asyncio.FIRST_COMPLETED)
    assert {task.result()[0].id for task in waiting if task.done()} == jobs
    await asyncio.sleep(0.05)
    (left,) = [task for task in waiting if not task.done()]
    left.cancel()


async def test_a_watcher_sees_the_job_through_to_its_end(board: JobBoard) -> None:
    job = submit(board)
    seen = asyncio.create_task(states(board.watch(job.id, heartbeat_s=60)))
    taken, _ = await board.take(TRANSFERS)
    await asyncio.sleep(0.2)
    with board.running(taken.id, lambda: None):
        await asyncio.sleep(0.2)
        board.finish(taken.id, JobState.DONE, result={"bytes": 1})
    async with asyncio.timeout(10):
        found = await seen
    assert (found[0], found[-1]) == (JobState.RUNNING, JobState.DONE)


async def test_a_watcher_who_comes_late_sees_the_end_at_once(board: JobBoard) -> None:
    job = submit(board)
    board.finish(job.id, JobState.DONE, result={})
    assert await states(board.watch(job.id, heartbeat_s=60)) == [JobState.DONE]


async def test_a_quiet_job_is_still_shown_to_be_alive(board: JobBoard) -> None:
    job = submit(board)
    watch = board.watch(job.id, heartbeat_s=0.01)
    async with asyncio.timeout(10):
        assert [(await anext(watch)).state for _ in range(3)] == [JobState.QUEUED] * 3


async def test_watchers_end_when_the_board_closes_and_nothing_new_is_taken(board: JobBoard) -> None:
    job = submit(board)
    seen = asyncio.create_task(states(board.watch(job.id, heartbeat_s=60)))
    await asyncio.sleep(0.01)
    board.close()
    async with asyncio.timeout(10):
        assert (await seen)[-1] is JobState.QUEUED
    with pytest.raises(UnavailableError) as caught:
        submit(board)
    assert caught.value.code == "daemon.stopping"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await board.take(TRANSFERS)
    assert board.get(job.id).state is JobState.QUEUED


async def test_an_unknown_job_cannot_be_watched_or_cancelled(board: JobBoard) -> None:
    with pytest.raises(NotFoundError):
        await anext(board.watch(new_job_id(), heartbeat_s=1))
    with pytest.raises(NotFoundError):
        board.cancel(new_job_id())


async def test_a_waiting_job_is_cancelled_at_once_and_a_running_one_by_its_runner(board: JobBoard) -> None:
    waiting = submit(board)
    cancelled = board.cancel(waiting.id)
    assert cancelled.state is JobState.CANCELLED
    assert cancelled.failure is not None
    assert cancelled.failure.code == "job.cancelled"

    submit(board)
    running, _ = await board.take(TRANSFERS)
    asked: list[bool] = []
    with board.running(running.id, lambda: asked.append(True)):
        assert not board.was_cancelled(running.id)
        assert board.cancel(running.id).state is JobState.RUNNING
        assert asked == [True]
        assert board.was_cancelled(running.id)
        board.finish(running.id, JobState.CANCELLED)
    assert board.cancel(running.id).state is JobState.CANCELLED
    assert asked == [True]


async def test_progress_from_many_threads_arrives_and_the_newest_counts(board: JobBoard) -> None:
    submit(board)
    job, _ = await board.take(TRANSFERS)
    with board.running(job.id, lambda: None):
        progress = board.reporter(job.id)

        def work() -> None:
            for done in range(200):
                progress("pull", done, 1000, "bytes")

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        progress("pull", 1000, 1000, "bytes")
        await asyncio.sleep(0.01)
        assert board.get(job.id).step == Step("pull", 1000, 1000, "bytes")
        board.finish(job.id, JobState.DONE, result={})
    assert board.get(job.id).step == Step("pull", 1000, 1000, "bytes")
    progress("pull", 1, 2, "bytes")  # a thread that comes too late
    await asyncio.sleep(0.01)
    assert board.get(job.id).step == Step("pull", 1000, 1000, "bytes")


async def test_a_crashed_job_is_handed_out_again_and_a_stopped_one_kept(board: JobBoard, queue: JobQueue) -> None:
    submit(board)
    for attempt in (1, 2, 3):
        async with asyncio.timeout(10):
            job, _ = await board.take(TRANSFERS)
        assert job.attempts == attempt
        with board.running(job.id, lambda: None):
            board.put_back(job.id, crash="it died")
    failed = board.get(job.id)
    assert failed.failure is not None
    assert (failed.state, failed.failure.code) == (JobState.FAILED, "job.crashed")

    other = submit(board)
    await board.take(TRANSFERS)
    board.close()
    with board.running(other.id, lambda: None):
        board.put_back(other.id)
    assert (queue.get(other.id).state, queue.get(other.id).attempts) == (JobState.QUEUED, 0)


@pytest.fixture
def locked(tmp_path: Path, queue: JobQueue) -> Callable[[], sqlite3.Connection]:
    """Makes every write of the queue fail, as a full disk does, until the connection is closed."""
    queue._db.execute("PRAGMA busy_timeout = 10")

    def lock() -> sqlite3.Connection:
        other = sqlite3.connect(tmp_path / "jobs.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        return other

    return lock


async def test_the_end_of_a_job_is_not_lost_to_its_caller_when_it_cannot_be_written(
    board: JobBoard, queue: JobQueue, locked: Callable[[], sqlite3.Connection]
) -> None:
    job = submit(board)
    await board.take(TRANSFERS)
    with board.running(job.id, lambda: None), closing(locked()):
        board.report(job.id, Step("pull", 1, 2, "bytes"))
        board.finish(job.id, JobState.DONE, result={"bytes": 2})
    assert (board.get(job.id).state, board.get(job.id).result) == (JobState.DONE, {"bytes": 2})
    assert [found.state for found in board.recent(9)] == [JobState.DONE]
    assert queue.get(job.id).state is JobState.RUNNING  # and so it is done again after a restart


async def test_a_job_that_cannot_be_put_back_fails(board: JobBoard, locked: Callable[[], sqlite3.Connection]) -> None:
    job = submit(board)
    await board.take(TRANSFERS)
    with board.running(job.id, lambda: None), closing(locked()):
        board.put_back(job.id, crash="it died")
    failed = board.get(job.id)
    assert failed.failure is not None
    assert failed.failure.code == "jobs.unusable"


async def test_work_is_taken_up_again_when_the_queue_s_file_can_be_used_again(
    board: JobBoard, locked: Callable[[], sqlite3.Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "RETRY_S", 0.05)
    job = submit(board)
    with closing(locked()):
        waiting = asyncio.create_task(board.take(TRANSFERS))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    async with asyncio.timeout(10):
        assert (await waiting)[0].id == job.id
