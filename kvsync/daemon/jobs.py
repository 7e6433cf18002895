"""The persistent queue: one SQLite file that survives SIGKILL. Knows rows and states, not how a job is done.

    submit ─► queued ─claim─► running ─finish─► done | failed | cancelled
                 ▲               │
                 └── recover ────┘   after a crash, at most MAX_ATTEMPTS times; then failed, `job.crashed`
                 └── release ────┘   after an orderly stop, not counted as an attempt

One process at a time opens it: the one that holds the daemon's lock.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self

from kvsync.daemon.fractions import pack
from kvsync.daemon.messages import MAX_RESULT_BYTES, Job, JobId, JobKind, JobState, Step
from kvsync.daemon.params import JobParams, parse_params
from kvsync.errors import NotFoundError, StoreError, UnavailableError, UsageError
from kvsync.failure import Failure
from kvsync.files import make_private_file, no_room, write_error
from kvsync_protocol import strictjson
from kvsync_protocol.errors import CodedError, ProtocolError, VersionError
from kvsync_protocol.limits import MiB

SCHEMA_VERSION: Final = 1
MAX_ATTEMPTS: Final = 3
MAX_QUEUED: Final = 1000
MAX_FINISHED: Final = 1000
"""Older finished jobs are forgotten."""
MAX_COLUMN_BYTES: Final = 16 * MiB

_SCHEMA: Final = f"""
CREATE TABLE job (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    shown TEXT NOT NULL,     -- params without the document
    params TEXT,             -- all of them, until the job is finished
    attempts INTEGER NOT NULL DEFAULT 0,
    step TEXT,
    result TEXT,
    failure TEXT,
    submitted INTEGER NOT NULL,
    finished INTEGER
) STRICT;
CREATE INDEX job_by_state ON job (state, sequence);
PRAGMA user_version = {SCHEMA_VERSION};
"""
_COLUMNS: Final = "id, kind, state, shown, attempts, step, result, failure, submitted, finished"
_JSON: Final = ("shown", "step", "result", "failure")
_NAMES: Final = {"shown": "params", "step": "progress", "failure": "error"}
"""Columns whose name differs from the API's."""


class JobQueue:
    """All jobs of one node, oldest first. Every call is one transaction and is on disk when it returns."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._db = connection
        self._path = path

    @classmethod
    def open(cls, path: Path) -> Self:
        """Raises StoreError `jobs.damaged`, `store.*`; VersionError `version.jobs`."""
        try:
            # Made here so that nobody else can ever read it: it holds documents.
            make_private_file(path)
        except OSError as error:
            raise write_error(error, path) from error
        queue = cls(sqlite3.connect(path, isolation_level=None, timeout=5.0), path)
        try:
            queue._prepare()
        except BaseException:
            queue.close()
            raise
        return queue

    def _prepare(self) -> None:
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA secure_delete = ON")  # a finished job's document leaves the file
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                self._db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except sqlite3.DatabaseError as error:
            raise _named(error, self._path) from error
        if version not in (0, SCHEMA_VERSION):
            raise VersionError(
                "version.jobs",
                f"{self._path} was written by another version of kvsync",
                hint=f"upgrade kvsync, or remove {self._path}: the store is not affected",
            )

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit what is inside, or nothing of it."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.rollback()
                raise
            self._db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            raise _named(error, self._path) from error

    def submit(self, job: JobId, kind: JobKind, params: JobParams) -> Job:
        """Queue a job; one that was submitted before under this id is returned as it is.

        Raises:
            UnavailableError: `job.queue_full`.
            UsageError: `job.other` when the id belongs to another job.
        """
        shown = strictjson.dumps(params.shown()).decode()
        with self._transaction() as db:
            known = db.execute("SELECT kind, shown FROM job WHERE id = ?", (job,)).fetchone()
            if known is None:
                if db.execute("SELECT count(*) FROM job WHERE state = 'queued'").fetchone()[0] >= MAX_QUEUED:
                    raise UnavailableError("job.queue_full", f"{MAX_QUEUED} jobs are waiting", hint="try again later")
                db.execute(
                    "INSERT INTO job (id, kind, state, shown, params, submitted) VALUES (?, ?, 'queued', ?, ?, ?)",
                    (job, kind.value, shown, strictjson.dumps(params.as_json()).decode(), _now()),
                )
            elif known != (kind.value, shown):
                raise UsageError("job.other", f"job {job} is another one", hint="draw a new id for each job")
        return self.get(job)

    def claim(self, kinds: Iterable[JobKind]) -> tuple[Job, JobParams] | None:
        """Take the oldest waiting job of these kinds; it is running from now on, and this is one more attempt."""
        names = [kind.value for kind in kinds]
        places = ", ".join("?" * len(names))
        while True:
            with self._transaction() as db:
                row = db.execute(
                    f"SELECT id, kind, params FROM job WHERE state = 'queued' AND kind IN ({places})"  # noqa: S608
                    " ORDER BY sequence LIMIT 1",
                    names,
                ).fetchone()
                if row is None:
                    return None
                db.execute("UPDATE job SET state = 'running', attempts = attempts + 1 WHERE id = ?", row[:1])
            job = JobId(row[0])
            try:
                params = parse_params(JobKind(row[1]), _loads(row[2]))
            except CodedError as error:  # written by another version of kvsync
                self.finish(job, JobState.FAILED, failure=Failure.of(error))
                continue
            return self.get(job), params

    def finish(
        self,
        job: JobId,
        state: JobState,
        *,
        result: dict[str, object] | None = None,
        failure: Failure | None = None,
    ) -> None:
        """End an unfinished job; its document is removed. A finished one stays as it is."""
        encoded = None if result is None else strictjson.dumps(pack(result)).decode()
        if encoded is not None and len(encoded) > MAX_RESULT_BYTES:
            raise ValueError(f"a result of {len(encoded)} bytes")  # our own, so a bug
        failed = None if failure is None else strictjson.dumps(failure.as_json()).decode()
        with self._transaction() as db:
            db.execute(
                "UPDATE job SET state = ?, result = ?, failure = ?, finished = ?, params = NULL"
                " WHERE id = ? AND state IN ('queued', 'running')",
                (state.value, encoded, failed, _now(), job),
            )
            db.execute(
                "DELETE FROM job WHERE finished IS NOT NULL AND sequence <= (SELECT sequence FROM job"
                " WHERE finished IS NOT NULL ORDER BY sequence DESC LIMIT 1 OFFSET ?)",
                (MAX_FINISHED,),
            )
        self._empty_log()

    def _empty_log(self) -> None:
        """Write the WAL's pages back and cut it: it holds the finished job's document."""
        try:
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.DatabaseError as error:
            raise _named(error, self._path) from error

    def release(self, job: JobId) -> None:
        """Put a running job back for the next start of the daemon; this was no attempt."""
        with self._transaction() as db:
            db.execute(
                "UPDATE job SET state = 'queued', attempts = attempts - 1 WHERE id = ? AND state = 'running'", (job,)
            )

    def crashed(self, job: JobId, reason: str) -> None:
        """Put a running job back after its process died, or end it when that happened too often."""
        if self.get(job).attempts < MAX_ATTEMPTS:
            with self._transaction() as db:
                db.execute("UPDATE job SET state = 'queued' WHERE id = ? AND state = 'running'", (job,))
            return
        error = UnavailableError(
            "job.crashed",
            f"{reason}, {MAX_ATTEMPTS} times",
            hint="see daemon.log; what was computed is kept for the next job with the same input",
        )
        self.finish(job, JobState.FAILED, failure=Failure.of(error))

    def recover(self) -> None:
        """At start: what was running when the last daemon died waits again, or has failed too often."""
        for job in self._select("WHERE state = 'running' ORDER BY sequence"):
            self.crashed(job.id, "the daemon died during this job")

    def record(self, job: JobId, step: Step) -> None:
        """Keep how far a running job is."""
        with self._transaction() as db:
            db.execute(
                "UPDATE job SET step = ? WHERE id = ? AND state = 'running'",
                (strictjson.dumps(step.as_json()).decode(), job),
            )

    def get(self, job: JobId) -> Job:
        """Raises NotFoundError `job.unknown_id`."""
        found = self._select("WHERE id = ?", job)
        if not found:
            raise NotFoundError("job.unknown_id", f"there is no job {job}", hint="kvsync daemon status")
        return found[0]

    def recent(self, limit: int) -> list[Job]:
        """The newest jobs, newest first."""
        return self._select("ORDER BY sequence DESC LIMIT ?", limit)

    def unfinished(self, kind: JobKind) -> list[Job]:
        """Those that wait or run, oldest first."""
        return self._select("WHERE state IN ('queued', 'running') AND kind = ? ORDER BY sequence", kind.value)

    def counts(self) -> dict[str, int]:
        """How many jobs are in each state."""
        try:
            rows = dict(self._db.execute("SELECT state, count(*) FROM job GROUP BY state").fetchall())
        except sqlite3.DatabaseError as error:
            raise _named(error, self._path) from error
        return {state.value: int(rows.get(state.value, 0)) for state in JobState}

    def _select(self, clause: str, *values: str | int) -> list[Job]:
        try:
            rows = self._db.execute(f"SELECT {_COLUMNS} FROM job {clause}", values).fetchall()  # noqa: S608
        except sqlite3.DatabaseError as error:
            raise _named(error, self._path) from error
        try:
            return [_job(row) for row in rows]
        except ProtocolError as error:
            raise _damaged(self._path, error.message) from error


def _job(row: tuple[str | int | None, ...]) -> Job:
    """A row in the API's own form, read by the API's own rules."""
    members = zip(_COLUMNS.split(", "), row, strict=True)
    found = {name: _loads(value) if name in _JSON and value is not None else value for name, value in members}
    return Job.parse({_NAMES.get(name, name): value for name, value in found.items()})


def _loads(text: object) -> dict[str, object]:
    return strictjson.loads(str(text).encode(), limit=MAX_COLUMN_BYTES, what="the queue")


def _now() -> int:
    """For people; nothing is decided by it, so a wrong clock does no harm."""
    return max(0, int(time.time()))


def _named(error: sqlite3.DatabaseError, path: Path) -> StoreError:
    code = error.sqlite_errorcode & 0xFF
    if code == sqlite3.SQLITE_FULL or (code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN) and no_room(path)):
        return StoreError("store.full", f"no space left for {path}", hint="kvsync gc, kvsync rm, or a larger disk")
    if isinstance(error, sqlite3.OperationalError):
        return StoreError("jobs.unusable", f"{path} cannot be used: {error}", hint="check owner, mode and disk")
    return _damaged(path, str(error))


def _damaged(path: Path, what: str) -> StoreError:
    return StoreError(
        "jobs.damaged",
        f"{path} is damaged: {what}",
        hint=f"remove {path}: waiting jobs are lost, the store is not affected",
    )
