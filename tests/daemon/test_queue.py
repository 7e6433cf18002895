"""The queue on disk: states, attempts, and what a killed daemon finds again."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvsync.daemon import jobs
from kvsync.daemon.jobs import MAX_ATTEMPTS, JobQueue
from kvsync.daemon.messages import Job, JobKind, JobState, Step, new_job_id
from kvsync.daemon.params import ComputeParams, JobParams
from kvsync.daemon.transfer_params import PullParams, PushParams
from kvsync.errors import KvsyncError, NotFoundError, StoreError, UnavailableError, UsageError
from kvsync.failure import Failure
from kvsync_protocol.errors import VersionError

COMPUTE = ComputeParams(Path("/m"), text="the document, which is secret")
PULL = PullParams("lab", "team/handbook")
PUSH = PushParams("lab", "a")
PARAMS: dict[JobKind, JobParams] = {JobKind.PULL: PULL, JobKind.COMPUTE: COMPUTE, JobKind.PUSH: PUSH}
ALL = list(JobKind)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.sqlite"


@pytest.fixture
def queue(path: Path) -> Iterator[JobQueue]:
    with closing(JobQueue.open(path)) as queue:
        yield queue


def submit(queue: JobQueue, kind: JobKind = JobKind.PULL) -> Job:
    return queue.submit(new_job_id(), kind, PARAMS[kind])


def state(queue: JobQueue, job: Job) -> JobState:
    return queue.get(job.id).state


def test_jobs_are_claimed_in_order_by_those_who_can_do_them(queue: JobQueue) -> None:
    first, compute, last = submit(queue), submit(queue, JobKind.COMPUTE), submit(queue, JobKind.PUSH)
    claimed = [queue.claim([JobKind.COMPUTE]), queue.claim([JobKind.PULL, JobKind.PUSH]), queue.claim(ALL)]
    assert [found and (found[0].id, found[1]) for found in claimed] == [
        (compute.id, COMPUTE),
        (first.id, PULL),
        (last.id, PUSH),
    ]
    assert queue.claim(ALL) is None
    assert queue.get(compute.id).state is JobState.RUNNING
    assert queue.get(compute.id).attempts == 1


def test_a_result_and_a_failure_are_kept(path: Path) -> None:
    with closing(JobQueue.open(path)) as queue:
        done, failed = submit(queue), submit(queue)
        queue.record(done.id, Step("pull", 1, 2, "bytes"))
        queue.claim(ALL)
        queue.claim(ALL)
        queue.record(done.id, Step("pull", 2, 2, "bytes"))
        queue.finish(done.id, JobState.DONE, result={"bytes": 2, "seconds": 1.5})
        error = UnavailableError("peer.unreachable", "no answer", hint="start it", peer="lab")
        queue.finish(failed.id, JobState.FAILED, failure=Failure.of(error))
    with closing(JobQueue.open(path)) as queue:
        assert queue.get(done.id).result == {"bytes": 2, "seconds": 1.5}
        assert queue.get(done.id).step == Step("pull", 2, 2, "bytes")
        found = queue.get(failed.id).failure
        assert found is not None
        assert (found.code, found.fields, type(found.error())) == (error.code, {"peer": "lab"}, UnavailableError)
        assert [job.id for job in queue.recent(9)] == [failed.id, done.id]


def test_a_finished_job_stays_as_it_is(queue: JobQueue) -> None:
    job = submit(queue)
    queue.finish(job.id, JobState.CANCELLED)
    queue.finish(job.id, JobState.DONE, result={"bytes": 1})
    queue.crashed(job.id, "late")
    queue.release(job.id)
    queue.record(job.id, Step("pull", 1, 1, "bytes"))
    found = queue.get(job.id)
    assert (found.state, found.result, found.step) == (JobState.CANCELLED, None, None)
    assert queue.claim(ALL) is None


def test_a_repeated_submission_is_one_job_and_another_under_its_id_is_refused(queue: JobQueue) -> None:
    job = submit(queue)
    assert queue.submit(job.id, JobKind.PULL, PULL) == job
    with pytest.raises(UsageError) as caught:
        queue.submit(job.id, JobKind.PULL, PullParams("lab", "other"))
    assert caught.value.code == "job.other"
    assert len(queue.recent(9)) == 1


def test_what_was_running_waits_again_and_fails_after_three_crashes(path: Path) -> None:
    with closing(JobQueue.open(path)) as queue:
        job = submit(queue, JobKind.COMPUTE)
        waiting = submit(queue)
    for attempt in range(1, MAX_ATTEMPTS + 1):
        with closing(JobQueue.open(path)) as queue:
            queue.recover()
            found = queue.claim([JobKind.COMPUTE])
            assert found is not None
            assert (found[0].attempts, found[1]) == (attempt, COMPUTE)
    with closing(JobQueue.open(path)) as queue:
        queue.recover()
        failed = queue.get(job.id)
        assert failed.state is JobState.FAILED
        assert failed.failure is not None
        assert failed.failure.code == "job.crashed"
        assert state(queue, waiting) is JobState.QUEUED
        assert queue.counts() == {"queued": 1, "running": 0, "done": 0, "failed": 1, "cancelled": 0}


def test_an_orderly_stop_counts_as_no_attempt(queue: JobQueue) -> None:
    job = submit(queue)
    for _ in range(2 * MAX_ATTEMPTS):
        queue.claim(ALL)
        queue.release(job.id)
    assert (state(queue, job), queue.get(job.id).attempts) == (JobState.QUEUED, 0)


def test_the_document_leaves_the_file_with_the_job(path: Path) -> None:
    with closing(JobQueue.open(path)) as queue:
        job = submit(queue, JobKind.COMPUTE)
    assert b"secret" in path.read_bytes()
    with closing(JobQueue.open(path)) as queue:
        queue.claim(ALL)
        queue.finish(job.id, JobState.DONE, result={})
        for file in path.parent.iterdir():
            assert b"secret" not in file.read_bytes(), file


def test_nobody_else_can_read_the_file_and_its_companions(queue: JobQueue, path: Path) -> None:
    submit(queue)
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


def test_old_finished_jobs_are_forgotten_and_waiting_ones_are_not(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MAX_FINISHED", 3)
    waiting = submit(queue)
    finished = [submit(queue) for _ in range(6)]
    for job in finished:
        queue.finish(job.id, JobState.DONE, result={})
    assert [job.id for job in queue.recent(99)] == [*[job.id for job in finished[:2:-1]], waiting.id]


def test_a_full_queue_says_so(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_QUEUED", 2)
    submit(queue)
    submit(queue)
    with pytest.raises(UnavailableError) as caught:
        submit(queue)
    assert caught.value.code == "job.queue_full"
    queue.claim(ALL)
    submit(queue)


def test_an_unknown_job_is_not_found(queue: JobQueue) -> None:
    with pytest.raises(NotFoundError) as caught:
        queue.get(new_job_id())
    assert caught.value.code == "job.unknown_id"


def test_a_job_of_another_version_fails_and_the_next_is_taken(queue: JobQueue, path: Path) -> None:
    old, good = submit(queue), submit(queue)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute('UPDATE job SET params = \'{"peer":"lab"}\' WHERE id = ?', (old.id,))
    found = queue.claim(ALL)
    assert found is not None
    assert found[0].id == good.id
    failed = queue.get(old.id)
    assert failed.failure is not None
    assert failed.failure.code == "job.missing"


def test_a_file_of_another_schema_is_refused_by_name(path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("PRAGMA user_version = 7")
    with pytest.raises(VersionError) as caught:
        JobQueue.open(path)
    assert caught.value.code == "version.jobs"


@pytest.mark.parametrize("content", [b"not a database" * 100, b"SQLite format 3\x00" + b"\xff" * 5000])
def test_a_damaged_file_is_an_error_with_a_way_out(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        JobQueue.open(path)
    assert caught.value.code == "jobs.damaged"
    assert str(path) in caught.value.hint


def test_a_damaged_row_is_an_error_and_no_crash(queue: JobQueue, path: Path) -> None:
    job = submit(queue)
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("UPDATE job SET shown = '{'")
    with pytest.raises(StoreError) as caught:
        queue.get(job.id)
    assert caught.value.code == "jobs.damaged"


def test_a_link_in_the_file_s_place_is_refused(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KvsyncError):
        JobQueue.open(path)
    assert not (tmp_path / "elsewhere").exists()


def test_every_job_that_was_accepted_before_a_kill_is_there_afterwards(path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from kvsync.daemon.jobs import JobQueue\n"
        "from kvsync.daemon.messages import JobKind, new_job_id\n"
        "from kvsync.daemon.transfer_params import PullParams\n"
        "queue = JobQueue.open(pathlib.Path(sys.argv[1]))\n"
        "while True:\n"
        "    job = queue.submit(new_job_id(), JobKind.PULL, PullParams('lab', 'x'))\n"
        "    print(job.id, flush=True)\n"
    )
    accepted = []
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(20):
            accepted.append(process.stdout.readline().strip())
        process.kill()
        accepted += process.stdout.read().split()
    with closing(JobQueue.open(path)) as queue:
        found = {str(job.id) for job in queue.recent(10_000)}
    assert len(accepted) >= 20
    assert set(accepted) <= found
