"""`kvsync model`: the models kvsync knows by name."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Facts, Outcome, Table, size


def add_commands(app: typer.Typer) -> None:
    add_group(app, "model", "Models that kvsync knows by name.", {"fetch": fetch, "ls": ls})


def fetch(run: Run, name: Annotated[str, typer.Argument(help="A name from `kvsync model ls`.")]) -> Outcome:
    """Download, check and convert a model.

    Every file is pinned by its SHA-256. A model that is here already is not fetched again.
    """
    from kvsync import models

    with run.progress() as progress:
        found = models.fetch(name, progress)
    data = {
        "model": found.name,
        "path": str(found.path),
        "licence": found.licence,
        "notice": found.notice,
        "fresh": found.fresh,
    }
    return Outcome(data, [Facts([("model", found.name), ("path", found.path)])], notes=[found.notice])


def ls(run: Run) -> Outcome:
    """List the models kvsync knows by name."""
    from kvsync import models

    entries = models.list_models()
    data = [
        {
            "name": entry.name,
            "title": entry.title,
            "licence": entry.licence,
            "fetched": entry.fetched,
            "path": None if entry.path is None else str(entry.path),
            "bytes": entry.bytes,
        }
        for entry in entries
    ]
    rows = [
        (e.name, e.title, e.licence, size(e.bytes) if e.fetched else "not fetched", e.path or "-") for e in entries
    ]
    return Outcome({"models": data}, [Table(("NAME", "MODEL", "LICENCE", "SIZE", "PATH"), rows)])
