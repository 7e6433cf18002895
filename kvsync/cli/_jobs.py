"""Work that a running daemon takes over: submit, follow, and cancel it when the user gives up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from kvsync.cli._command import Run
    from kvsync.daemon.client import DaemonClient
    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.params import JobParams

LocalOption = Annotated[bool, typer.Option("--local", help="Work in this process even when a daemon runs.")]


def running_daemon(run: Run, *, local: bool) -> DaemonClient | None:
    """The daemon that shall do the work; None when none runs or the user wants none."""
    from kvsync.daemon.client import DaemonClient

    if local:
        return None
    client = DaemonClient(run.node())
    return client if client.running() else None


def do(run: Run, client: DaemonClient, kind: JobKind, params: JobParams) -> dict[str, object]:
    """The result of a job. Raises its error; an interrupt cancels it."""
    job = client.submit(kind, params)
    try:
        with run.progress() as progress:
            return client.wait(job, progress)
    except KeyboardInterrupt:
        client.cancel(job)
        raise
