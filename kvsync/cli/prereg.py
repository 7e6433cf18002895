"""`kvsync prereg`: commit to outputs before anybody else computes them, and replay such a commitment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from kvsync.cli import _evidence
from kvsync.cli._command import Run, add_group
from kvsync.cli._evidence import (
    Attention,
    AttentionOption,
    EngineOption,
    FileArgument,
    OutOption,
    PublicKeyOption,
    SamplesOption,
    SeedOption,
)
from kvsync.cli._fields import meaning
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption
from kvsync.cli._render import Facts, Outcome, Table
from kvsync.errors import EXIT_STATUS, UsageError
from kvsync_protocol.errors import MismatchError

if TYPE_CHECKING:
    from kvsync_protocol.receipt import Receipt


def add_commands(app: typer.Typer) -> None:
    text = "Commit to outputs first, replay afterwards."
    add_group(app, "prereg", text, {"create": create, "replay": replay})


def create(
    run: Run,
    model: ModelOption = DEFAULT_MODEL,
    samples: SamplesOption = 50,
    engine: EngineOption = "transformers",
    attention: AttentionOption = Attention.AUTO,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    seed: SeedOption = 1,
    out: OutOption = None,
) -> Outcome:
    """Compute, number and sign what others are to find.

    The statement holds inputs, settings, fingerprints and output hashes, this node's next number and the time.
    """
    from kvsync.evidence.registration import create as register

    _evidence.check_out(out)
    configuration = _evidence.configuration(run, model, dtype, device, engine, attention, samples, seed)
    signer = run.keys().signer
    with run.progress() as progress:
        prereg = register(configuration, run.node(), signer, progress)
    path = _evidence.write_receipt(prereg, out)
    data = {"file": str(path), **_evidence.receipt_json(prereg)}
    view = [_evidence.header_facts(prereg), Facts([("number", prereg.header.run["sequence"]), ("file", path)])]
    return Outcome(data, view)


def replay(
    run: Run,
    file: FileArgument,
    model: ModelOption = DEFAULT_MODEL,
    public_key: PublicKeyOption = None,
    engine: EngineOption = "transformers",
    device: DeviceOption = "cpu",
    out: OutOption = None,
) -> Outcome:
    """Compute here what was preregistered elsewhere, and compare.

    Counts are signers given with --public-key, else those this node trusts. The exit status is 6 unless every
    record matches.
    """
    from kvsync.evidence.registration import replay as run_again
    from kvsync_protocol.prereg import PREREG

    _evidence.check_out(out)
    keys = _evidence.public_keys(public_key) or sorted(run.trust().keys())
    prereg = _evidence.read_receipt(file, keys)
    if prereg.header.kind != PREREG:
        raise UsageError(
            "prereg.kind", f"{file} is a receipt of kind {prereg.header.kind}", hint="kvsync prereg create makes one"
        )
    configuration = _evidence.configuration(run, model, None, device, engine, Attention.AUTO, 1, 0)
    signer = run.keys().signer
    with run.progress() as progress:
        receipt, differing = run_again(prereg, configuration, run.node(), signer, progress)
    path = _evidence.write_receipt(receipt, out)
    exact = receipt.header.summary["exact"] is True
    data = {
        "match": exact,
        "file": str(path),
        "prereg": str(prereg.digest),
        "differing": [
            {"field": f.field, "meaning": meaning(f.field), "ours": f.ours, "theirs": f.theirs} for f in differing
        ],
        "matches": [record["match"] for record in receipt.records],
        **_evidence.receipt_json(receipt),
    }
    rows = [
        (record["index"], record["mode"], record["document"], record["new"], _yes(record["match"]))
        for record in receipt.records
    ]
    view: list[str | Table | Facts] = [Table(("#", "MODE", "DOCUMENT", "NEW", "MATCH"), rows), ""]
    if differing:
        view += [Table(("NUMERICS", "HERE", "REGISTERED"), [(f.field, f.ours, f.theirs) for f in differing]), ""]
    view += [
        Facts(
            [
                ("match", exact),
                ("matches", f"{receipt.header.summary['matches']} of {receipt.header.count}"),
                ("preregistration", _registered(prereg)),
                ("receipt", path),
            ]
        )
    ]
    return Outcome(data, view, status=0 if exact else EXIT_STATUS[MismatchError])


def _yes(value: object) -> str:
    return "yes" if value is True else "NO"


def _registered(prereg: Receipt) -> str:
    return f"number {prereg.header.run['sequence']} of {prereg.header.signer}, {prereg.digest}"
