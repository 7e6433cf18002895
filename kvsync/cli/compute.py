"""`kvsync compute`: prefill a document once and keep its KV state as a signed artifact."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._document import read_document
from kvsync.cli._jobs import LocalOption, do, running_daemon
from kvsync.cli._models import (
    DEFAULT_MODEL,
    DeviceOption,
    DTypeOption,
    ModelOption,
    Precision,
    model_path,
    open_engine,
)
from kvsync.cli._remote import compute_on
from kvsync.cli._render import Facts, Outcome, seconds, size

if TYPE_CHECKING:
    from kvsync.daemon.client import DaemonClient


def add_commands(app: typer.Typer) -> None:
    command(app, "compute")(compute)


def compute(
    run: Run,
    document: Annotated[str, typer.Argument(metavar="FILE", help="A UTF-8 text, or - for standard input.")],
    model: ModelOption = DEFAULT_MODEL,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="A signed name for it, for example team/handbook.")
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    on: Annotated[
        str | None,
        typer.Option("--on", metavar="PEER", help="Have this peer compute it, and fetch what it has signed."),
    ] = None,
    local: LocalOption = False,
) -> Outcome:
    """Compute and sign a document's KV state.

    An interrupted computation goes on at its last stored block; a document that begins like an earlier one
    shares its leading blocks. A running daemon does the work, unless --local is given. With --on the model may
    also be a compatibility digest, sha256:…, where it is not here.
    """
    from kvsync_protocol.ref import check_name

    if name is not None:
        check_name(name)
    run.keys()
    text = read_document(document)
    if on is not None:
        return compute_on(run, on, text, model, name, dtype, device, local=local)
    path = model_path(model)
    daemon = running_daemon(run, local=local)
    began = time.monotonic()
    if daemon is None:
        found = _here(run, text, str(path), name, dtype, device)
    else:
        found = _there(run, daemon, text, str(path), name, dtype, device)
    elapsed = time.monotonic() - began
    data = {**found, "seconds": round(elapsed, 3), "daemon": daemon is not None}
    view = Facts(
        [
            ("artifact", found["artifact"]),
            ("name", name or "-"),
            ("tokens", found["tokens"]),
            ("size", size(int(str(found["bytes"])))),
            ("time", seconds(elapsed)),
        ]
    )
    return Outcome(data, [view])


def _here(
    run: Run, text: str, model: str, name: str | None, dtype: Precision | None, device: str
) -> dict[str, object]:
    from kvsync.graft.client import Client

    with Client(run.node().root) as client:
        engine = open_engine(run, model, dtype, device)
        with run.progress() as progress:
            stored = client.deposit(engine, text, name=name, progress=progress)
    return {
        "artifact": str(stored.artifact),
        "name": name,
        "tokens": stored.manifest.tokens.count,
        "bytes": stored.bytes,
    }


def _there(
    run: Run, daemon: DaemonClient, text: str, model: str, name: str | None, dtype: Precision | None, device: str
) -> dict[str, object]:
    from pathlib import Path

    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.params import ComputeParams

    wanted = None if dtype is None else dtype.dtype
    result = do(
        run, daemon, JobKind.COMPUTE, ComputeParams(Path(model), text, dtype=wanted, device=device, name=name)
    )
    return {key: result[key] for key in ("artifact", "name", "tokens", "bytes")}
