"""A PostgreSQL server of one's own, for tests and benchmarks: a fresh cluster on a unix socket, stopped at the end.

Uses Debian's package, whose programs refuse to run as root; then they run as the user `postgres`.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START_S = 60.0
SETTINGS = {"listen_addresses": "", "max_connections": "60", "shared_buffers": "128MB", "log_min_messages": "warning"}


class PostgresMissingError(RuntimeError):
    """The programs are not installed."""


def program(name: str) -> Path:
    """`initdb` or `postgres`; Debian keeps them out of the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    found = shutil.which(name, path=os.pathsep.join(str(folder) for folder in reversed(folders)))
    found = found or shutil.which(name)
    if found is None:
        raise PostgresMissingError(f"{name} is not here; bash .ci/postgresql installs PostgreSQL")
    return Path(found)


def owner() -> dict[str, Any]:
    """As whom to run the programs: arguments for subprocess."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


class Cluster:
    """One server; `url(database)` is how to reach it."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process

    def url(self, database: str = "postgres") -> str:
        return f"host={self.folder} dbname={database} user=registry"

    def create(self, database: str) -> str:
        """A new, empty database; its url."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url(), autocommit=True) as db:
            db.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
        return self.url(database)

    def bytes(self, database: str) -> int:
        """How much a database takes on disk."""
        import psycopg

        with psycopg.connect(self.url(database)) as db:
            row = db.execute("SELECT pg_database_size(current_database())").fetchone()
        return int(row[0]) if row else 0


@contextmanager
def cluster(parent: Path | None = None, settings: dict[str, str] | None = None) -> Iterator[Cluster]:
    """A server with its data below `parent`.

    Raises:
        PostgresMissingError, RuntimeError: why there is none.
    """
    initdb, postgres = program("initdb"), program("postgres")
    folder = Path(tempfile.mkdtemp(prefix="kvsync-pg-", dir=parent))
    run_as = owner()
    try:
        if run_as:
            os.chown(folder, run_as["user"], run_as["group"])
        data = folder / "data"
        command = [str(initdb), "-D", str(data), "-U", "registry", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **run_as)
        if done.returncode:
            raise RuntimeError(f"initdb failed: {done.stderr.strip()[-500:]}")
        options = [part for pair in {**SETTINGS, **(settings or {})}.items() for part in ("-c", "=".join(pair))]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [str(postgres), "-D", str(data), "-k", str(folder), *options],
                stdout=log,
                stderr=log,
                cwd="/",
                **run_as,
            )
        try:
            _wait(folder, process)
            yield Cluster(folder, process)
        finally:
            process.send_signal(2)  # SIGINT: fast shutdown
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    finally:
        shutil.rmtree(folder)


def _wait(folder: Path, process: subprocess.Popen[bytes]) -> None:
    import psycopg

    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(f"host={folder} dbname=postgres user=registry", connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()[-500:]}") from error
            time.sleep(0.05)
        else:
            return
