"""The JSON of the local API: what the daemon and its clients say to each other, in one place for both.

Every type reads strictly what it writes: `X.parse(x.as_json()) == x`. Only whole numbers, as everywhere in
kvsync. Knows neither HTTP nor SQLite nor how a job is done.
"""

from __future__ import annotations

import enum
import re
import secrets
from dataclasses import dataclass
from typing import Final, NewType, Self

from kvsync.daemon.fractions import pack, unpack
from kvsync.daemon.network_status import MAX_SHOWN, NOTHING_FOLLOWED, FollowState, RegistryState
from kvsync.failure import Failure
from kvsync.networks import MAX_NETWORKS
from kvsync_protocol import strictjson
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB, MiB
from kvsync_protocol.strictjson import Fields

API_VERSION: Final = 3
API_HOST: Final = "kvsync"
"""The only Host header the daemon answers."""
VERSION_HEADER: Final = "X-Kvsync-Api"

MAX_REQUEST_BYTES: Final = 10 * MiB
"""A document of MAX_DOCUMENT_BYTES with half of its characters escaped, and room for the rest."""
MAX_REPLY_BYTES: Final = 4 * MiB
MAX_RESULT_BYTES: Final = 32 * KiB
MAX_LISTED_JOBS: Final = 50
"""So many of the largest results fit into one reply."""
MAX_STEP: Final = strictjson.MAX_SAFE_INTEGER

_FAMILY: Final = "job"
_JOB_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)

JobId = NewType("JobId", str)
"""16 lower-case hex digits, drawn by whoever submits, so that a repeated request is not a second job."""


def new_job_id() -> JobId:
    return JobId(secrets.token_hex(8))


def parse_job_id(text: object) -> JobId:
    """Raises MalformedError `job.id`."""
    if not isinstance(text, str) or not _JOB_ID.fullmatch(text):
        raise MalformedError("job.id", "not a job id", hint="expected 16 lower-case hex digits")
    return JobId(text)


class JobKind(enum.Enum):
    """What a job does: `compute` runs in the worker process, the others in the daemon; `ask` has a peer compute."""

    COMPUTE = "compute"
    PULL = "pull"
    PUSH = "push"
    ASK = "ask"


class JobState(enum.Enum):
    """queued → running → done | failed | cancelled; running → queued after a crash or a stop of the daemon."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True, slots=True)
class Step:
    """Where a job is: `done` of `total` in `unit` ("tokens", "bytes")."""

    stage: str
    done: int
    total: int
    unit: str

    def as_json(self) -> dict[str, object]:
        return {"stage": self.stage, "done": self.done, "total": self.total, "unit": self.unit}

    @classmethod
    def parse(cls, value: object) -> Self:
        fields = Fields(value, _FAMILY)
        step = cls(
            fields.string("stage", limit=100),
            fields.integer("done", 0, MAX_STEP),
            fields.integer("total", 0, MAX_STEP),
            fields.string("unit", limit=20),
        )
        fields.done()
        return step


@dataclass(frozen=True, slots=True)
class Job:
    """A job as the API shows it. `params` holds no document: its size stands in for it.

    `submitted` and `finished` are seconds since 1970, for people; nothing is decided by them.
    """

    id: JobId
    kind: JobKind
    state: JobState
    params: dict[str, object]
    attempts: int
    submitted: int
    finished: int | None = None
    step: Step | None = None
    result: dict[str, object] | None = None
    failure: Failure | None = None

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "kind": self.kind.value,
            "state": self.state.value,
            "params": self.params,
            "attempts": self.attempts,
            "submitted": self.submitted,
            "finished": self.finished,
            "progress": None if self.step is None else self.step.as_json(),
            "result": None if self.result is None else pack(self.result),
            "error": None if self.failure is None else self.failure.as_json(),
        }

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises MalformedError `job.*`."""
        fields = Fields(value, _FAMILY)
        job = cls(
            id=parse_job_id(fields.take("id")),
            kind=_kind(fields),
            state=_state(fields),
            params=fields.mapping("params"),
            attempts=fields.integer("attempts", 0, MAX_STEP),
            submitted=fields.integer("submitted", 0, MAX_STEP),
            finished=fields.optional("finished", lambda name: fields.integer(name, 0, MAX_STEP)),
            step=fields.optional("progress", lambda name: Step.parse(fields.take(name))),
            result=fields.optional("result", lambda name: unpack(fields.mapping(name))),
            failure=fields.optional("error", lambda name: Failure.parse(fields.take(name))),
        )
        fields.done()
        return job


@dataclass(frozen=True, slots=True)
class Submission:
    """The body of POST /jobs. `params` is read by `kvsync.daemon.params` under its kind."""

    id: JobId
    kind: JobKind
    params: dict[str, object]

    def encode(self) -> bytes:
        return strictjson.dumps({"id": self.id, "kind": self.kind.value, "params": self.params})

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Raises MalformedError `json.*`, `job.*`."""
        fields = Fields(strictjson.loads(data, limit=MAX_REQUEST_BYTES, what="the job"), _FAMILY)
        submission = cls(parse_job_id(fields.take("id")), _kind(fields), fields.mapping("params"))
        fields.done()
        return submission


@dataclass(frozen=True, slots=True)
class Status:
    """The daemon as it is now. `address` is where peers reach it; `worker` is absent, starting, idle or busy;
    `unencrypted` are networks with which it exchanges chunks without encryption."""

    pid: int
    version: str
    home: str
    address: str
    peer_key: str
    worker: str
    worker_pid: int | None
    uptime_s: int
    jobs: dict[str, int]
    registries: tuple[RegistryState, ...] = ()
    follows: FollowState = NOTHING_FOLLOWED
    unencrypted: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "pid": self.pid,
            "version": self.version,
            "home": self.home,
            "address": self.address,
            "peer_key": self.peer_key,
            "worker": self.worker,
            "worker_pid": self.worker_pid,
            "uptime_s": self.uptime_s,
            "jobs": dict(self.jobs),
            "registries": [each.as_json() for each in self.registries],
            "follows": self.follows.as_json(),
            "unencrypted_bulk_networks": list(self.unencrypted),
        }

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises MalformedError `status.*`."""
        fields = Fields(value, "status")
        counts = Fields(fields.mapping("jobs"), "status")
        jobs = {state.value: counts.integer(state.value, 0, MAX_STEP) for state in JobState}
        counts.done()
        status = cls(
            pid=fields.integer("pid", 1, MAX_STEP),
            version=fields.string("version", limit=100),
            home=fields.string("home", limit=4 * KiB),
            address=fields.string("address", limit=400),
            peer_key=fields.string("peer_key", limit=100),
            worker=fields.string("worker", limit=20),
            worker_pid=fields.optional("worker_pid", lambda name: fields.integer(name, 1, MAX_STEP)),
            uptime_s=fields.integer("uptime_s", 0, MAX_STEP),
            jobs=jobs,
            registries=tuple(map(RegistryState.parse, fields.array("registries", limit=MAX_SHOWN))),
            follows=FollowState.parse(fields.take("follows")),
            unencrypted=tuple(fields.strings("unencrypted_bulk_networks", limit=MAX_NETWORKS, each=100)),
        )
        fields.done()
        return status


def _kind(fields: Fields) -> JobKind:
    text = fields.string("kind", limit=20)
    found = next((kind for kind in JobKind if kind.value == text), None)
    if found is None:
        raise MalformedError("job.kind", f"there are no {text!r} jobs", hint="compute, pull, push or ask")
    return found


def _state(fields: Fields) -> JobState:
    text = fields.string("state", limit=20)
    found = next((state for state in JobState if state.value == text), None)
    if found is None:
        raise MalformedError("job.state", f"jobs are never {text!r}")
    return found
