"""`kvsync keys`: this node's own public keys. Private keys are never printed."""

from __future__ import annotations

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Facts, Outcome


def add_commands(app: typer.Typer) -> None:
    add_group(app, "keys", "This node's own keys.", {"show": show})


def show(run: Run) -> Outcome:
    """Show the public keys that others pin.

    The signer key goes into their `kvsync trust add`, the peer key into their `kvsync peer add`.
    """
    keys = run.keys()
    data = {
        role: {"key": str(key.public), "key_id": key.public.key_id}
        for role, key in (("signer", keys.signer), ("peer", keys.peer))
    }
    view = [Facts([("signer", keys.signer.public), ("peer", keys.peer.public)])]
    return Outcome(data, view)
