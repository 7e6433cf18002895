"""Compute jobs through a real daemon and its real worker, with both of them killed on the way."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvsync.config import Home, Settings
from kvsync.daemon import lifecycle
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.messages import Job, JobId, JobKind, JobState
from kvsync.daemon.params import ComputeParams
from kvsync.keys import NodeKeys
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import CodedError
from kvsync_protocol.layout import DType

Start = Callable[[Home], int]
BLOCK = 256
TEXT = " ".join(f"w{random.Random(number).randrange(100)}" for number in range(40 * BLOCK + 77))
SETTINGS = Settings(free_floor_bytes=0, threads=1)


@dataclass(frozen=True)
class Reference:
    """An undisturbed computation of TEXT, by another node: its home, where its daemon still runs, and its result."""

    home: Home
    result: dict[str, object]

    @property
    def artifact(self) -> str:
        return str(self.result["artifact"])

    @property
    def tokens(self) -> int:
        assert isinstance(self.result["tokens"], int)
        return self.result["tokens"]


@pytest.fixture(scope="module")
def params(tiny_model_dir: Path) -> ComputeParams:
    return ComputeParams(tiny_model_dir, text=TEXT, dtype=DType.F32, name="team/handbook")


@pytest.fixture(scope="module")
def reference(params: ComputeParams, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    home = make_home(tmp_path_factory.mktemp("reference") / "home")
    lifecycle.start(home)
    try:
        client = DaemonClient(home)
        yield Reference(home, client.wait(client.submit(JobKind.COMPUTE, params)))
    finally:
        lifecycle.stop(home)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return make_home(tmp_path / "home")


def make_home(root: Path) -> Home:
    home = Home(root)
    home.create()
    NodeKeys.create(home)
    SETTINGS.save(home)
    return home


def until_under_way(client: DaemonClient, job: JobId, attempt: int = 1) -> Job:
    """Follow the job until this attempt has stored a block and has others still to do."""
    for state in client.events(job):
        assert not state.state.final, state
        step = state.step
        if state.attempts != attempt or state.state is not JobState.RUNNING:
            continue
        if step is not None and step.unit == "tokens" and BLOCK <= step.done < step.total - BLOCK:
            return state
    raise AssertionError("the daemon went away")


def check_stored(home: Home, reference: Reference) -> None:
    """The artifact is complete, named, signed by this node and sound to the last byte."""
    with Store.open(home.store_dir) as store:
        stored = store.artifact(ArtifactId(Digest.parse(reference.artifact)))
        assert store.resolve("team/handbook") == stored.artifact
        assert stored.envelope.signers([NodeKeys.load(home).signer.public])
        report = store.fsck()
        assert report.clean, report


def test_a_job_is_computed_once_and_the_next_of_its_kind_finds_it_with_the_same_worker(
    reference: Reference, params: ComputeParams
) -> None:
    client = DaemonClient(reference.home)
    status = client.status()
    assert status["worker"] == "idle"
    assert reference.result["tokens_computed"] == reference.tokens == 40 * BLOCK + 77
    seen: list[tuple[str, int, int, str]] = []
    again = client.wait(client.submit(JobKind.COMPUTE, params), lambda *step: seen.append(step))
    assert (again["artifact"], again["tokens_computed"]) == (reference.artifact, 0)
    assert ("loading", 1, 1, "model") in seen
    shorter = ComputeParams(params.model, tokens=tuple(range(99)) * 10, dtype=DType.F32, boundaries=(300,))
    computed = client.wait(client.submit(JobKind.COMPUTE, shorter))
    assert (computed["tokens"], computed["tokens_computed"], computed["name"]) == (990, 990, None)
    assert client.status()["worker_pid"] == status["worker_pid"]
    check_stored(reference.home, reference)


def test_a_daemon_killed_in_the_middle_goes_on_where_it_was(
    home: Home,
    start: Start,
    kill: Callable[[Home], None],
    params: ComputeParams,
    reference: Reference,
) -> None:
    start(home)
    client = DaemonClient(home)
    job = client.submit(JobKind.COMPUTE, params)
    before = until_under_way(client, job)
    worker = os.pidfd_open(int(str(client.status()["worker_pid"])))
    kill(home)
    wait_for_end(worker)  # the worker has died with it

    start(home)
    result = client.wait(job)
    assert result["artifact"] == reference.artifact
    assert client.job(job).attempts == 2
    assert before.step is not None
    computed = result["tokens_computed"]
    assert isinstance(computed, int)
    assert 0 < computed <= reference.tokens - before.step.done + BLOCK
    check_stored(home, reference)


def test_a_killed_worker_is_replaced_and_a_stopped_daemon_keeps_the_job_and_what_was_computed(
    home: Home, start: Start, params: ComputeParams, reference: Reference
) -> None:
    daemon = start(home)
    client = DaemonClient(home)
    job = client.submit(JobKind.COMPUTE, params)
    until_under_way(client, job)
    first = client.status()["worker_pid"]
    assert isinstance(first, int)
    os.kill(first, signal.SIGKILL)
    until_under_way(client, job, attempt=2)
    status = client.status()
    assert (status["pid"], status["worker"]) == (daemon, "busy")
    assert status["worker_pid"] not in (None, first)

    worker = os.pidfd_open(int(str(status["worker_pid"])))
    lifecycle.stop(home)
    wait_for_end(worker)
    start(home)
    result = client.wait(job)
    assert result["artifact"] == reference.artifact
    assert client.job(job).attempts == 2  # the crash counts, the stop does not
    computed = result["tokens_computed"]
    assert isinstance(computed, int)
    assert computed < reference.tokens
    check_stored(home, reference)


def test_a_cancelled_job_ends_and_a_failing_one_says_why_and_the_worker_stays(
    reference: Reference, params: ComputeParams, tmp_path: Path
) -> None:
    client = DaemonClient(reference.home)
    worker = client.status()["worker_pid"]
    other = ComputeParams(params.model, text=TEXT[::-1].replace("w", " w"), dtype=DType.F32)
    job = client.submit(JobKind.COMPUTE, other)
    waiting = client.submit(JobKind.COMPUTE, other)
    until_under_way(client, job)
    assert client.cancel(waiting).state is JobState.CANCELLED
    client.cancel(job)
    for cancelled in (job, waiting):
        with pytest.raises(CodedError) as caught:
            client.wait(cancelled)
        assert caught.value.code == "job.cancelled"

    (tmp_path / "empty").mkdir()
    for model, code in ((tmp_path / "absent", "model.missing"), (tmp_path / "empty", "engine.")):
        with pytest.raises(CodedError) as failed:
            client.wait(client.submit(JobKind.COMPUTE, ComputeParams(model, text="w1")))
        assert failed.value.code.startswith(code)
    assert client.status()["worker_pid"] == worker
    check_stored(reference.home, reference)


def wait_for_end(process: int) -> None:
    """Wait for the process behind a pidfd, and close it."""
    import select

    poller = select.poll()
    poller.register(process, select.POLLIN)
    assert poller.poll(30_000)
    os.close(process)
