"""What daemon, clients and worker say to each other: every message survives, nothing else is understood."""

from __future__ import annotations

import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.daemon import pipe
from kvsync.daemon.fractions import pack, unpack
from kvsync.daemon.messages import (
    Job,
    JobId,
    JobKind,
    JobState,
    Status,
    Step,
    Submission,
    new_job_id,
    parse_job_id,
)
from kvsync.daemon.params import ComputeParams
from kvsync.errors import EXIT_STATUS, KvsyncError, UnavailableError, exit_status
from kvsync.failure import Failure
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError, IntegrityError, MalformedError, ProtocolError
from kvsync_protocol.group import COMPUTED

texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=20)
numbers = st.integers(0, 2**53 - 1)
job_ids = st.text("0123456789abcdef", min_size=16, max_size=16).map(JobId)
steps = st.builds(Step, texts, numbers, numbers, st.text(string.ascii_letters, max_size=20))
data = st.dictionaries(texts, st.one_of(numbers, texts, st.none(), st.booleans()), max_size=4)
failures = st.builds(Failure, st.sampled_from([kind.__name__ for kind in EXIT_STATUS]), texts, texts, texts, data)
results = st.dictionaries(
    st.text(string.ascii_lowercase, min_size=1, max_size=9),
    st.one_of(numbers, texts, st.integers(0, 10**12).map(lambda millionths: millionths / 1_000_000)),
    max_size=4,
)
jobs = st.builds(
    Job,
    job_ids,
    st.sampled_from(JobKind),
    st.sampled_from(JobState),
    data,
    numbers,
    numbers,
    st.none() | numbers,
    st.none() | steps,
    st.none() | results,
    st.none() | failures,
)
computes = st.builds(
    ComputeParams,
    st.just(Path("/models/a b")),
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=50),
    dtype=st.none() | st.sampled_from(COMPUTED),
    name=st.none() | st.just("team/handbook"),
    template=st.none() | st.just(sha256(b"template")),
    boundaries=st.lists(st.integers(1, 1000), max_size=3).map(tuple),
)


@given(jobs)
def test_a_job_survives_the_api(job: Job) -> None:
    assert Job.parse(job.as_json()) == job


@given(steps)
def test_a_step_survives(step: Step) -> None:
    assert Step.parse(step.as_json()) == step


@given(failures)
def test_an_error_arrives_as_the_same_error(failure: Failure) -> None:
    arrived = Failure.parse(failure.as_json()).error()
    assert type(arrived).__name__ == failure.kind
    assert Failure.of(arrived) == failure


@pytest.mark.parametrize("kind", list(EXIT_STATUS))
def test_the_exit_status_survives(kind: type[CodedError]) -> None:
    assert exit_status(Failure.of(kind("a.b", "message")).error()) == EXIT_STATUS[kind]


def test_an_error_of_any_content_becomes_a_message_that_can_be_read() -> None:
    class OwnError(IntegrityError):
        """A class the other side has never heard of."""

    wild = OwnError(
        "a.b", "line\none\x00" + "\ud800" + "x" * 9999, share=0.5, at=[1, 2.5], path=Path("/a"), big=2**60
    )
    failure = Failure.parse(Failure.of(wild).as_json())
    assert failure.kind == "IntegrityError"
    assert failure.message.startswith("line one ")
    assert failure.fields == {"share": "0.5", "at": [1, "2.5"], "path": "/a", "big": str(2**60)}
    assert Failure.of(UnavailableError("a.b", "m", huge="x" * 5000)).fields == {}


def test_an_unknown_class_is_a_plain_error() -> None:
    assert type(Failure("OSError", "a.b", "message").error()) is KvsyncError


@given(results)
def test_fractions_travel_as_whole_numbers(result: dict[str, object]) -> None:
    packed = pack(result)
    assert not any(isinstance(value, float) for value in packed.values())
    assert unpack(packed) == result


@given(job_ids, st.sampled_from(JobKind), data)
def test_a_submission_survives(job: JobId, kind: JobKind, params: dict[str, object]) -> None:
    submission = Submission(job, kind, params)
    assert Submission.parse(submission.encode()) == submission


def test_a_status_survives() -> None:
    counts = {state.value: number for number, state in enumerate(JobState)}
    status = Status(7, "0.1.0", "/home", "127.0.0.1:1", "ed25519:x", "idle", 8, 9, counts)
    assert Status.parse(status.as_json()) == status
    unencrypted = replace(status, unencrypted=("10.0.0.0/8",))
    assert Status.parse(unencrypted.as_json()) == unencrypted


def test_job_ids_are_drawn_and_read_in_one_form() -> None:
    assert parse_job_id(new_job_id()) != parse_job_id(new_job_id())
    for wrong in ("", "0" * 15, "0" * 17, "A" * 16, "../../etc/passwd", "٠" * 16, 7, None):
        with pytest.raises(MalformedError):
            parse_job_id(wrong)


@given(job_ids, computes, steps, results, failures)
def test_every_message_of_the_worker_pipe_survives(
    job: JobId, params: ComputeParams, step: Step, result: dict[str, object], failure: Failure
) -> None:
    for order in (pipe.Run(job, params), pipe.Cancel(job), pipe.Stop()):
        line = pipe.encode(order)
        assert line.count(b"\n") == 1
        assert pipe.decode_order(line) == order
    for report in (pipe.Ready(), pipe.Progressed(job, step), pipe.Done(job, result), pipe.Failed(job, failure)):
        line = pipe.encode(report)
        assert line.count(b"\n") == 1
        assert pipe.decode_report(line) == report


@given(st.binary(max_size=200))
def test_other_bytes_are_a_protocol_error_and_nothing_else(noise: bytes) -> None:
    for read in (pipe.decode_order, pipe.decode_report, Submission.parse):
        with pytest.raises(ProtocolError):
            read(noise)


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"type":"ready","more":1}',
        b'{"type":"ready","type":"ready"}',
        b'{"type":"run"}',
        b'{"type":"step","job":"0000000000000000","step":{"stage":"s","done":-1,"total":1,"unit":"u"}}',
        b'{"type":"step","job":"0000000000000000","step":{"stage":"s","done":0.5,"total":1,"unit":"u"}}',
        b'{"type":"done","job":"0000000000000000","result":[]}',
        b'{"type":"failed","job":"0000000000000000","failure":{}}',
        b'{"type":"done","job":"short","result":{}}',
        b'{"type":"ready"}' + b" " * pipe.MAX_REPORT_BYTES,
    ],
)
def test_a_report_is_read_strictly(line: bytes) -> None:
    with pytest.raises(MalformedError):
        pipe.decode_report(line)


def test_values_no_message_may_hold_are_refused(tmp_path: Path) -> None:
    good: dict[str, Any] = Job(new_job_id(), JobKind.PULL, JobState.DONE, {}, 1, 2).as_json()
    for name, wrong in (
        ("id", "x"),
        ("kind", "guess"),
        ("state", "lost"),
        ("attempts", -1),
        ("submitted", True),
        ("progress", {"stage": 1}),
        ("error", []),
        ("params", None),
    ):
        with pytest.raises(MalformedError):
            Job.parse({**good, name: wrong})
    with pytest.raises(MalformedError):
        Job.parse({**good, "more": 1})
