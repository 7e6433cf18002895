"""`kvsync doctor`: is everything here as it must be, and what to do about what is not."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._render import Outcome, Table


def add_commands(app: typer.Typer) -> None:
    command(app, "doctor")(doctor)


def doctor(
    run: Run,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="The model to test with; default a small one that is fetched."),
    ] = None,
) -> Outcome:
    """Check this node, each finding with a hint.

    Home, keys, lists, disk, clock, store, Python and engine versions, whether this host computes the same
    bytes twice, models, daemon. The exit status is that of the first thing that is broken.
    """
    from kvsync.cli._checkup import checkup

    with run.progress() as progress:
        found = checkup(run, model, progress)
    broken = [check for check in found if check.status]
    rows = [(check.name, check.state, check.detail) for check in found]
    data = {"healthy": not broken, "checks": [check.as_json() for check in found]}
    notes = [f"hint: {check.name}: {check.hint}" for check in found if check.hint]
    return Outcome(data, [Table(("CHECK", "STATE", "DETAIL"), rows)], notes, status=broken[0].status if broken else 0)
