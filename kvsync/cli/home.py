"""`kvsync init`: make this node's home and keys."""

from __future__ import annotations

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._render import Facts, Outcome


def add_commands(app: typer.Typer) -> None:
    command(app, "init")(init)


def init(run: Run) -> Outcome:
    """Create this node's home and keys.

    Harmless when they exist: nothing is replaced.
    """
    from kvsync.keys import NodeKeys

    present = (run.home.keys_dir / "signer.key").exists()
    run.home.create()
    keys = NodeKeys.create(run.home)
    data = {
        "home": str(run.home.root),
        "created": not present,
        "signer": str(keys.signer.public),
        "peer": str(keys.peer.public),
    }
    view = [Facts([("home", run.home.root), ("signer", keys.signer.public), ("peer", keys.peer.public)])]
    return Outcome(data, view, notes=["the home was there already, nothing changed"] if present else [])
