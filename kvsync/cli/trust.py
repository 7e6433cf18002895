"""`kvsync trust`: the signers whose bytes count here."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Outcome, Table


def add_commands(app: typer.Typer) -> None:
    add_group(app, "trust", "Signers whose artifacts count here.", {"add": add, "ls": ls, "rm": rm})


def add(
    run: Run,
    name: Annotated[str, typer.Argument(help="How you call the signer.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its signer key, from its `kvsync keys show`.")],
) -> Outcome:
    """Trust a signer.

    What it signed may be pulled and grafted here. Make sure whose key it is before.
    """
    from kvsync_protocol.signing import PublicKey

    found = PublicKey.parse(key)
    run.trust().add(name, found)
    return Outcome({"name": name, "key": str(found)}, [f"{name} is trusted"])


def ls(run: Run) -> Outcome:
    """List trusted signers.

    This node's own key is always one of them.
    """
    own = run.keys().signer.public
    signers = run.trust().signers()
    data = {"own": str(own), "signers": [{"name": s.name, "key": str(s.key)} for s in signers]}
    rows = [("(this node)", own), *((s.name, s.key) for s in signers)]
    return Outcome(data, [Table(("NAME", "KEY"), rows)])


def rm(run: Run, signer: Annotated[str, typer.Argument(help="Name or key.")]) -> Outcome:
    """Trust a signer no longer.

    Artifacts that only it signed can then not be grafted.
    """
    removed = run.trust().remove(signer)
    return Outcome({"name": removed.name, "key": str(removed.key)}, [f"{removed.name} is no longer trusted"])
