"""`kvsync prove`: the exactness experiment on this host, and the signed receipt that says what it showed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsync.cli import _evidence
from kvsync.cli._command import Run, command
from kvsync.cli._evidence import Attention, AttentionOption, EngineOption, OutOption, SamplesOption, SeedOption
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption
from kvsync.cli._render import Facts, Outcome
from kvsync.errors import EXIT_STATUS
from kvsync_protocol.errors import IntegrityError


def add_commands(app: typer.Typer) -> None:
    command(app, "prove")(prove)


def prove(
    run: Run,
    model: ModelOption = DEFAULT_MODEL,
    samples: SamplesOption = 50,
    engine: EngineOption = "transformers",
    attention: AttentionOption = Attention.AUTO,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 1,
    references: Annotated[
        int,
        typer.Option("--references", metavar="N", min=0, help="Measure what is not exact on the first N samples."),
    ] = 10,
    out: OutOption = None,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Also draw the plot as PNG; needs matplotlib.")
    ] = None,
) -> Outcome:
    """Prove on this host that grafts are exact, in a receipt.

    Each sample is computed afresh, grafted in the same process, grafted in a fresh process, and grafted from
    what a peer sent over TLS; all logits and 32 decode steps are compared by SHA-256. Beside these, labelled as
    other references: one-shot prefill, prefill without the cut at the artifact's end, and shifted positions.
    The exit status is 4 unless every graft was equal.
    """
    from kvsync.evidence.plot import check_plotting, points, save_png
    from kvsync.evidence.prove import prove as experiment

    for name in (out, plot):
        _evidence.check_out(name)
    if plot is not None:
        check_plotting()
    configuration = _evidence.configuration(run, model, dtype, device, engine, attention, samples, seed)
    signer = run.keys().signer
    with run.progress() as progress:
        receipt = experiment(configuration, signer, reference_samples=references, progress=progress)
    path = _evidence.write_receipt(receipt, out)
    if plot is not None:
        save_png(points(receipt.header.summary), Path(_evidence.default_name(receipt)).stem, Path(plot).absolute())
    exact = receipt.header.summary["exact"] is True
    data = {"exact": exact, "file": str(path), "plot": plot, **_evidence.receipt_json(receipt)}
    view = [
        *_evidence.summary_view(receipt),
        "",
        Facts([("exact", exact), ("receipt", path), ("check it", f"kvsync receipts check {path.name}")]),
    ]
    return Outcome(data, view, status=0 if exact else EXIT_STATUS[IntegrityError])
