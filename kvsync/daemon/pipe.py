"""What the daemon and its worker say to each other: one JSON object a line, strict and capped.

    daemon ─► worker   run {job, params} · cancel {job} · stop
    worker ─► daemon   ready · step {job, step} · done {job, result} · failed {job, failure}

`decode(encode(m)) == m` for every message. Knows no processes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.daemon.fractions import pack, unpack
from kvsync.daemon.messages import MAX_REQUEST_BYTES, MAX_RESULT_BYTES, JobId, Step, parse_job_id
from kvsync.daemon.params import ComputeParams
from kvsync.failure import Failure
from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB
from kvsync_protocol.strictjson import Fields

MAX_ORDER_BYTES: Final = MAX_REQUEST_BYTES + 64 * KiB
"""A line to the worker: it carries the document."""
MAX_REPORT_BYTES: Final = MAX_RESULT_BYTES + 32 * KiB
"""A line from the worker."""


@dataclass(frozen=True, slots=True)
class Run:
    """Do this job; only sent when the worker has none."""

    job: JobId
    params: ComputeParams


@dataclass(frozen=True, slots=True)
class Cancel:
    """End this job at the next block boundary."""

    job: JobId


@dataclass(frozen=True, slots=True)
class Stop:
    """End at the next block boundary."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has started and waits for a job."""


@dataclass(frozen=True, slots=True)
class Progressed:
    """Where the job is."""

    job: JobId
    step: Step


@dataclass(frozen=True, slots=True)
class Done:
    """The job is finished."""

    job: JobId
    result: dict[str, object]


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended with an error; the worker is fit for the next one."""

    job: JobId
    failure: Failure


Order = Run | Cancel | Stop
Report = Ready | Progressed | Done | Failed


def encode(message: Order | Report) -> bytes:
    """One line, newline included."""
    match message:
        case Run(job, params):
            body: dict[str, object] = {"type": "run", "job": job, "params": params.as_json()}
        case Cancel(job):
            body = {"type": "cancel", "job": job}
        case Stop():
            body = {"type": "stop"}
        case Ready():
            body = {"type": "ready"}
        case Progressed(job, step):
            body = {"type": "step", "job": job, "step": step.as_json()}
        case Done(job, result):
            body = {"type": "done", "job": job, "result": pack(result)}
        case Failed(job, failure):
            body = {"type": "failed", "job": job, "failure": failure.as_json()}
    return strictjson.dumps(body) + b"\n"


def decode_order(line: bytes) -> Order:
    """Raises MalformedError `json.*`, `pipe.*`, and what the parameters raise."""
    kind, fields = _open(line, MAX_ORDER_BYTES)
    order: Order
    match kind:
        case "run":
            order = Run(parse_job_id(fields.take("job")), ComputeParams.parse(fields.take("params")))
        case "cancel":
            order = Cancel(parse_job_id(fields.take("job")))
        case "stop":
            order = Stop()
        case _:
            raise MalformedError("pipe.type", f"there is no order {kind!r}")
    fields.done()
    return order


def decode_report(line: bytes) -> Report:
    """Raises MalformedError `json.*`, `pipe.*`, `job.*`."""
    kind, fields = _open(line, MAX_REPORT_BYTES)
    report: Report
    match kind:
        case "ready":
            report = Ready()
        case "step":
            report = Progressed(parse_job_id(fields.take("job")), Step.parse(fields.take("step")))
        case "done":
            report = Done(parse_job_id(fields.take("job")), unpack(fields.mapping("result")))
        case "failed":
            report = Failed(parse_job_id(fields.take("job")), Failure.parse(fields.take("failure")))
        case _:
            raise MalformedError("pipe.type", f"there is no report {kind!r}")
    fields.done()
    return report


def _open(line: bytes, limit: int) -> tuple[str, Fields]:
    fields = Fields(strictjson.loads(line, limit=limit, what="the line"), "pipe")
    return fields.string("type", limit=20), fields
