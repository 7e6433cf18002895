"""`DaemonClient`: talks to the daemon of a home from a synchronous program. Imports neither aiohttp nor torch.

Raises what the daemon answers as the errors they were there. Knows the local API, not the work behind it.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from kvsync.config import Home
from kvsync.daemon import endpoint
from kvsync.daemon.messages import (
    API_HOST,
    API_VERSION,
    MAX_LISTED_JOBS,
    MAX_REPLY_BYTES,
    VERSION_HEADER,
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
from kvsync.daemon.params import JobParams, parse_params
from kvsync.errors import KvsyncError, UnavailableError
from kvsync.failure import Failure
from kvsync.progress import Progress, silent
from kvsync_protocol import strictjson
from kvsync_protocol.errors import VersionError
from kvsync_protocol.strictjson import Fields

REQUEST_TIMEOUT_S: Final = 30.0
EVENTS_TIMEOUT_S: Final = 60.0
"""Longer than the daemon's heartbeat."""
PATIENCE_S: Final = 10.0
"""How long `wait` looks for a daemon that is being restarted."""


class DaemonClient:
    """Cheap to make: a connection is opened for each request.

    Every method raises UnavailableError `daemon.not_running` when nobody answers, `daemon.silent` when it
    takes too long, and VersionError `version.api` when a daemon of another version runs.
    """

    def __init__(self, home: Home) -> None:
        self._home = home

    def running(self) -> bool:
        """True when a daemon answers."""
        try:
            self._ask("GET", "/status")
        except UnavailableError as error:
            if error.code == "daemon.not_running":
                return False
            raise
        return True

    def status(self) -> dict[str, object]:
        """What `messages.Status` holds: pid, version, home, address for peers, worker, jobs by state and others."""
        return Status.parse(self._ask("GET", "/status").mapping("status")).as_json()

    def submit(self, kind: JobKind | str, params: JobParams | Mapping[str, object]) -> JobId:
        """Queue a job and return its id at once. A job is on disk when this returns.

        Raises:
            UsageError, MalformedError: `job.*` for parameters that make no sense.
            UnavailableError: `job.queue_full`, `daemon.stopping`.
        """
        kind = JobKind(kind)
        if isinstance(params, Mapping):
            params = parse_params(kind, dict(params))
        body = Submission(new_job_id(), kind, params.as_json()).encode()
        return Job.parse(self._ask("POST", "/jobs", body).mapping("job")).id

    def job(self, job: str) -> Job:
        """Raises NotFoundError `job.unknown_id`."""
        return Job.parse(self._ask("GET", f"/jobs/{parse_job_id(job)}").mapping("job"))

    def jobs(self) -> list[Job]:
        """The newest jobs, newest first."""
        return [Job.parse(entry) for entry in self._ask("GET", "/jobs").array("jobs", limit=MAX_LISTED_JOBS)]

    def cancel(self, job: str) -> Job:
        """End a job; a finished one stays as it is. Raises NotFoundError `job.unknown_id`."""
        return Job.parse(self._ask("POST", f"/jobs/{parse_job_id(job)}/cancel").mapping("job"))

    def shutdown(self) -> int:
        """Ask the daemon to stop; returns its pid at once. `lifecycle.stop` also waits."""
        return Status.parse(self._ask("POST", "/shutdown").mapping("status")).pid

    def wait(self, job: str, progress: Progress = silent) -> dict[str, object]:
        """Follow a job to its end and return its result. A restart of the daemon meanwhile is waited for.

        Raises:
            CodedError: the job's own error, of its own class; KvsyncError `job.cancelled`.
            NotFoundError: `job.unknown_id`.
            UnavailableError: `daemon.not_running` when the daemon went away; the job goes on when it is back.
        """
        last = self._last_state(parse_job_id(job), progress)
        if last.failure is not None:
            raise last.failure.error()
        if last.state is not JobState.DONE:
            raise KvsyncError("job.no_result", f"job {job} ended as {last.state.value} and says nothing")
        return last.result or {}

    def _last_state(self, job: JobId, progress: Progress) -> Job:
        shown: Step | None = None
        lost: float | None = None
        while True:
            try:
                for state in self.events(job):
                    lost = None
                    if state.step is not None and state.step != shown:
                        shown = state.step
                        progress(shown.stage, shown.done, shown.total, shown.unit)
                    if state.state.final:
                        return state
            except UnavailableError as error:
                if lost is not None and time.monotonic() - lost > PATIENCE_S:
                    raise UnavailableError(
                        error.code, error.message, hint="kvsync daemon start; the job goes on by itself then"
                    ) from error
            lost = lost if lost is not None else time.monotonic()
            time.sleep(0.2)  # only while a daemon stops or starts

    def events(self, job: str) -> Generator[Job, None, None]:
        """The job's state now and after each change, until it is finished or the daemon stops.

        Raises:
            NotFoundError: `job.unknown_id`.
        """
        with self._request("GET", f"/jobs/{parse_job_id(job)}/events", b"", EVENTS_TIMEOUT_S) as reply:
            while line := reply.readline(MAX_REPLY_BYTES):
                fields = _open(line)
                yield Job.parse(fields.mapping("job"))

    def _ask(self, method: str, path: str, body: bytes = b"") -> Fields:
        with self._request(method, path, body, REQUEST_TIMEOUT_S) as reply:
            return _open(reply.read(MAX_REPLY_BYTES + 1))

    @contextmanager
    def _request(self, method: str, path: str, body: bytes, timeout_s: float) -> Iterator[http.client.HTTPResponse]:
        """The answer to one request, when it is no refusal; errors while it is read are named as well."""
        connection = _UnixConnection(self._home, timeout_s)
        try:
            connection.request(method, path, body or None, {"Content-Type": "application/json"} if body else {})
            reply = connection.getresponse()
            _check_version(reply)
            if reply.status >= 400:
                raise Failure.parse(_open(reply.read(MAX_REPLY_BYTES + 1)).mapping("error")).error()
            yield reply
        except TimeoutError as error:
            raise UnavailableError(
                "daemon.silent", f"the daemon has not answered for {timeout_s:.0f} s", hint="see daemon.log"
            ) from error
        except (ConnectionError, http.client.HTTPException) as error:
            raise UnavailableError(
                "daemon.not_running", "the daemon went away", hint="kvsync daemon start"
            ) from error
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over the home's socket."""

    def __init__(self, home: Home, timeout_s: float) -> None:
        super().__init__(API_HOST, timeout=timeout_s)
        self._home = home
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """Raises UnavailableError `daemon.not_running`."""
        self.sock = endpoint.connect(self._home.socket, self._timeout_s)


def _check_version(reply: http.client.HTTPResponse) -> None:
    found = reply.getheader(VERSION_HEADER)
    if found != str(API_VERSION):
        raise VersionError(
            "version.api", "the running daemon is of another version", hint="kvsync daemon stop; kvsync daemon start"
        )


def _open(data: bytes) -> Fields:
    return Fields(strictjson.loads(data, limit=MAX_REPLY_BYTES, what="the daemon's answer"), "api")
