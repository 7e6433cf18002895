"""`kvsync model`: the models kvsync knows by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._models import DeviceOption, DTypeOption, model_path, open_engine
from kvsync.cli._render import Facts, Outcome, Table, size

if TYPE_CHECKING:
    from kvsync.daemon.offered import OfferedModel


def add_commands(app: typer.Typer) -> None:
    add_group(
        app,
        "model",
        "Models that kvsync knows by name, and those that others may use.",
        {"fetch": fetch, "ls": ls, "offer": offer, "offered": offered, "withdraw": withdraw},
    )


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


def offer(
    run: Run,
    model: Annotated[str, typer.Argument(help="A name from `kvsync model ls`, or a model directory.")],
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Let peers of the role `compute` have documents computed with it.

    They name it by its fingerprints, which are taken now: offer it again when model, engine or `threads` changed.
    """
    from kvsync.daemon.offered import OfferedModel, OfferedModels

    path, listed = model_path(model), OfferedModels(run.node())
    engine = open_engine(run, str(path), dtype, device)
    found = OfferedModel(model, path, None if dtype is None else dtype.dtype, device, engine.fingerprints)
    listed.add(found)
    return Outcome(_offered(found), [f"{model} is offered as {engine.fingerprints.compatibility.digest}"])


def offered(run: Run) -> Outcome:
    """List the models that peers may have this node compute with."""
    from kvsync.daemon.offered import OfferedModels

    found = OfferedModels(run.node()).models()
    rows = [
        (m.name, m.dtype.value if m.dtype else "as saved", m.device, m.fingerprints.compatibility.digest, m.path)
        for m in found
    ]
    view = Table(("NAME", "DTYPE", "DEVICE", "COMPATIBILITY", "PATH"), rows)
    return Outcome({"models": [_offered(each) for each in found]}, [view])


def withdraw(run: Run, model: Annotated[str, typer.Argument(help="As it was offered.")]) -> Outcome:
    """Offer a model to peers no longer."""
    from kvsync.daemon.offered import OfferedModels

    removed = OfferedModels(run.node()).remove(model)
    return Outcome({"models": [_offered(each) for each in removed]}, [f"{model} is no longer offered"])


def _offered(model: OfferedModel) -> dict[str, object]:
    return {
        "name": model.name,
        "path": str(model.path),
        "dtype": None if model.dtype is None else model.dtype.value,
        "device": model.device,
        "compatibility": str(model.fingerprints.compatibility.digest),
        "numerics": str(model.fingerprints.numerics.digest),
    }
