"""What the commands about receipts share: options, reading and writing the files, and how one is shown."""

from __future__ import annotations

import enum
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsync.cli._models import DEFAULT_MODEL, Precision, model_path
from kvsync.cli._render import Facts, Table, moment
from kvsync.progress import Progress, silent

if TYPE_CHECKING:
    from kvsync.cli._command import Run
    from kvsync.evidence.configuration import Configuration
    from kvsync.library.evaluation.judged import Judged
    from kvsync_protocol.receipt import Receipt
    from kvsync_protocol.signing import PublicKey


class Attention(enum.StrEnum):
    """Implementations of attention that repeat themselves."""

    AUTO = "auto"
    SDPA = "sdpa"
    EAGER = "eager"


SamplesOption = Annotated[int, typer.Option("--samples", metavar="N", min=1, help="How many samples to draw.")]
SeedOption = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="From which the samples are drawn.")]
AttentionOption = Annotated[
    Attention,
    typer.Option("--attention", help="Implementation of attention; auto is what the model takes by itself."),
]
EngineOption = Annotated[str, typer.Option("--engine", metavar="ENGINE", help="What computes; transformers so far.")]
PublicKeyOption = Annotated[
    list[str] | None,
    typer.Option("--public-key", metavar="KEY", help="A signer that counts; may be repeated."),
]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A receipt or preregistration.")]
OutOption = Annotated[
    str | None, typer.Option("--out", metavar="FILE", help="Where to write it; default a name made of what was run.")
]


def configuration(
    run: Run,
    model: str,
    dtype: Precision | None,
    device: str,
    engine: str,
    attention: Attention,
    samples: int,
    seed: int,
) -> Configuration:
    """Raises NotFoundError `model.*`, UsageError `config.*`."""
    from kvsync.evidence.configuration import Configuration

    return Configuration(
        model=model_name(model),
        model_dir=model_path(model),
        dtype=None if dtype is None else dtype.dtype.value,
        attention=attention.value,
        device=device,
        engine=engine,
        threads=run.settings().threads,
        samples=samples,
        seed=seed,
    )


def model_name(model: str) -> str:
    """How a receipt names the model: never by where it lies on this host."""
    return Path(model).name or DEFAULT_MODEL


def public_keys(texts: list[str] | None) -> list[PublicKey]:
    """Raises MalformedError `key.*`."""
    from kvsync_protocol.signing import PublicKey

    return [PublicKey.parse(text) for text in texts or ()]


def read_receipt(name: str, keys: list[PublicKey]) -> Receipt:
    """As `parse_receipt`, with verdicts judged again. Raises also as `judge_again`."""
    receipt = parse_receipt(name, keys)
    judged(receipt)
    return receipt


def parse_receipt(name: str, keys: list[PublicKey]) -> Receipt:
    """Read a file and check all of it but verdicts, the choice of samples included where their generator is known.

    Raises:
        NotFoundError: `file.missing`; StoreError: `file.*`.
        ProtocolError: as `Receipt.parse` and `check_drawn`.
    """
    from kvsync.evidence.samples import check_drawn
    from kvsync.files import read_limited
    from kvsync_protocol.limits import MAX_RECEIPT_BYTES
    from kvsync_protocol.receipt import Receipt
    from kvsync_protocol.scorers import SCORERS

    path = Path(os.path.realpath(name))  # links are followed here: the user named them
    receipt = Receipt.parse(read_limited(path, MAX_RECEIPT_BYTES, what="the receipt"), SCORERS, keys)
    if "generator" in receipt.header.run:
        check_drawn(receipt.header.run, receipt.records)
    return receipt


def judged(receipt: Receipt, *, run: bool = False, progress: Progress = silent) -> Judged | None:
    """Every verdict of a library's receipt judged again; None for other kinds. Raises as `judge_again`."""
    from kvsync.library.evaluation.judged import judge_again
    from kvsync_protocol.trial_score import KIND

    if receipt.header.kind != KIND:
        return None
    return judge_again(receipt.records, run=run, progress=progress)


def check_out(name: str | None) -> None:
    """Raises UsageError `receipt.folder` before hours of work have nowhere to go. None is this folder."""
    from kvsync.errors import UsageError

    path = Path(name or "receipt").absolute()
    if name == "" or not path.parent.is_dir():
        raise UsageError("receipt.folder", f"there is no folder for {name!r}", hint="make it first")
    if name is not None and path.is_dir():
        raise UsageError("receipt.folder", f"{name} is a folder", hint="name a file in it")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UsageError(
            "receipt.folder", f"nothing can be written to {path.parent}", hint="choose another with --out"
        )


def write_receipt(receipt: Receipt, out: str | None) -> Path:
    """Write it readable for everyone; raises StoreError `store.*`."""
    from kvsync.files import write_atomic

    path = Path(out or default_name(receipt)).absolute()
    write_atomic(path, receipt.encode(), mode=0o644)
    return path


def default_name(receipt: Receipt) -> str:
    """For example `exactness-smollm2-135m-F32-sdpa.receipt`."""
    numerics = receipt.header.fingerprints.numerics.fields
    parts = [receipt.header.kind, receipt.header.run.get("model"), numerics.get("dtype"), numerics.get("attention")]
    return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", str(part)) for part in parts if part) + ".receipt"


def receipt_json(receipt: Receipt) -> dict[str, object]:
    """The header and what names it, for `--json`."""
    header = receipt.header
    return {
        "receipt": str(receipt.digest),
        "kind": header.kind,
        "software": header.software,
        "time": header.time,
        "signer": str(header.signer),
        "run": dict(header.run),
        "fingerprints": {
            f.kind.value: {"digest": str(f.digest), "fields": f.as_json()}
            for f in (header.fingerprints.compatibility, header.fingerprints.numerics)
        },
        "records": header.count,
        "root": str(header.root),
        "summary": dict(header.summary),
    }


def header_facts(receipt: Receipt) -> Facts:
    """Who says what about which run, for people."""
    header, pair = receipt.header, receipt.header.fingerprints
    numerics = pair.numerics.fields
    described = [numerics.get(name, "") for name in ("engine", "dtype", "attention", "device")]
    return Facts(
        [
            ("receipt", receipt.digest),
            ("kind", header.kind),
            ("made", f"{moment(header.time)} by {header.software}"),
            ("signer", header.signer),
            ("model", f"{header.run.get('model', '-')}, weights {pair.compatibility.fields.get('weights', '-')}"),
            ("computed by", ", ".join(filter(None, described)) + f", threads {numerics.get('threads', '-')}"),
            ("compatibility", pair.compatibility.digest),
            ("numerics", pair.numerics.digest),
            ("records", f"{header.count} under root {header.root}"),
        ]
    )


def summary_view(receipt: Receipt) -> list[str | Table | Facts]:
    """The kind's summary: table and plot for exactness, plain facts for others."""
    from kvsync_protocol import exactness, trial_score

    summary: dict[str, Any] = dict(receipt.header.summary)
    if receipt.header.kind == trial_score.KIND:
        from kvsync.cli._eval import summary_table

        return summary_table(summary)
    if receipt.header.kind != exactness.KIND:
        return [Facts([(name.replace("_", " "), value) for name, value in summary.items()])]
    from kvsync.evidence.plot import TITLE, bars, points

    found = points(summary)
    rows = [
        (
            point.label,
            f"{point.equal} of {point.samples}",
            point.agreement,
            f"{point.kl_max:.1e}" if point.kl_max else "0",
            f"{point.max_abs:.1e}" if point.max_abs else "0",
            f"{point.refused} without" if point.refused else "",
        )
        for point in found
    ]
    return [
        Table(("AGAINST (a) CANONICAL FRESH", "EQUAL", "ARGMAX", "KL MAX", "MAX DIFF", ""), rows),
        "",
        f"{TITLE}, logarithmic",
        *bars(found),
    ]
