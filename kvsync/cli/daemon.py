"""`kvsync daemon`: the background service of this node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Facts, Outcome, seconds

if TYPE_CHECKING:
    from kvsync.daemon.messages import Status


def add_commands(app: typer.Typer) -> None:
    add_group(
        app,
        "daemon",
        "The background service of this node.",
        {"start": start, "stop": stop, "status": status, "run": run_here},
    )


def start(run: Run) -> Outcome:
    """Start it, and wait until it is ready."""
    from kvsync.daemon import lifecycle

    found = lifecycle.start(run.node())
    return Outcome({"running": True, **found}, [_facts(found)])


def stop(run: Run) -> Outcome:
    """Stop it in order.

    Transfers and computations under way go on at the next start.
    """
    from kvsync.daemon import lifecycle

    pid = lifecycle.stop(run.node())
    return Outcome({"running": False, "pid": pid}, [f"the daemon with pid {pid} has stopped"])


def status(run: Run) -> Outcome:
    """Show whether it runs, where, and what it does.

    The exit status is 8 when none runs.
    """
    from kvsync.daemon import lifecycle
    from kvsync.errors import UnavailableError

    found = lifecycle.status(run.node())
    if found is None:
        raise UnavailableError("daemon.not_running", "no daemon runs here", hint="kvsync daemon start")
    return Outcome({"running": True, **found}, [_facts(found)])


def run_here(run: Run) -> Outcome:
    """Be the daemon, in the foreground.

    Logs go to stderr. SIGTERM and an interrupt end it in order.
    """
    from kvsync import log
    from kvsync.daemon import lifecycle

    log.configure("DEBUG" if run.terminal.verbose else "WARNING" if run.terminal.quiet else "INFO")

    def ready(found: Status) -> None:
        run.terminal.note(f"listening for peers on {found.address}")

    lifecycle.run(run.node(), ready)
    return Outcome({"running": False})


def _facts(found: dict[str, object]) -> Facts:
    jobs = found.get("jobs")
    counts = [f"{count} {state}" for state, count in jobs.items() if count] if isinstance(jobs, dict) else []
    uptime = found.get("uptime_s")
    return Facts(
        [
            ("pid", found.get("pid")),
            ("version", found.get("version")),
            ("home", found.get("home")),
            ("address", found.get("address")),
            ("peer key", found.get("peer_key")),
            ("uptime", seconds(float(uptime)) if isinstance(uptime, int | float) else "-"),
            ("worker", found.get("worker")),
            ("jobs", ", ".join(counts) or "none"),
            *_network(found),
        ]
    )


def _network(found: dict[str, object]) -> list[tuple[str, object]]:
    """Registries, what is followed, and with whom there is no encryption, where there are any."""
    from kvsync.daemon.messages import Status

    status = Status.parse(found)
    facts: list[tuple[str, object]] = [
        (
            "registry",
            f"{each.name}: {each.state}{f' ({each.code})' if each.code else ''}"
            f"{f', {each.due} to be told' if each.due else ''}",
        )
        for each in status.registries
    ]
    follows = status.follows
    if follows.patterns:
        facts.append(
            (
                "following",
                f"{follows.in_step} in step, {follows.fetching} being fetched, {follows.failing} failing"
                f"{f'; {follows.silent} do not answer' if follows.silent else ''}",
            )
        )
    if status.unencrypted:
        facts.append(("UNENCRYPTED", f"chunks to and from {', '.join(status.unencrypted)}"))
    return facts
