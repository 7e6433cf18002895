"""`kvsync export` and `import`: artifacts in one signed file, for hosts without a network between them."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._models import DeviceOption, DTypeOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, plural, seconds, size
from kvsync.cli.transfer import refusal_status
from kvsync.errors import NotFoundError, StoreError, UsageError

if TYPE_CHECKING:
    from kvsync.bundle import BundleReport
    from kvsync.bundle.members import Readable

ENCODINGS = ("identity", "zstd", "planes")


def add_commands(app: typer.Typer) -> None:
    command(app, "export")(export)
    command(app, "import")(import_)


def export(
    run: Run,
    artifacts: Annotated[
        list[str], typer.Argument(metavar="ARTIFACT", help="Names, ids, or the first 8 or more digits of ids.")
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="The bundle; it must not exist yet.")],
    encoding: Annotated[
        str | None, typer.Option(help="How chunks are written: identity, zstd or planes; default as the setting.")
    ] = None,
    no_names: Annotated[bool, typer.Option("--no-names", help="Leave out the names of these artifacts.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; tell what would be packed.")] = False,
) -> Outcome:
    """Pack artifacts into one signed file.

    For a host without a network: carry the file there, then `kvsync import`. Of an artifact kept in part, that
    part is packed. A KV state can be turned back into its text: guard the file like the documents.
    """
    from kvsync.bundle import export_bundle

    if encoding is not None and encoding not in ENCODINGS:
        raise UsageError(
            "bundle.encoding", f"{encoding!r} is no encoding", hint=f"encodings are {', '.join(ENCODINGS)}"
        )
    with run.store() as store, run.progress() as progress:
        report = export_bundle(
            store,
            [store.resolve(name) for name in artifacts],
            Path(out),
            keys=run.keys(),
            encoding=encoding or run.settings().encoding,
            names=not no_names,
            progress=progress,
            dry_run=dry_run,
        )
    return _outcome(report, "would be packed" if dry_run else "packed")


def import_(
    run: Run,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A bundle, or - to read one from stdin.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Compare fingerprints with this model's before any chunk."),
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    no_names: Annotated[bool, typer.Option("--no-names", help="Take the artifacts without their names.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Take nothing; tell what would be taken, and what every rule says.")
    ] = False,
) -> Outcome:
    """Take all artifacts of a bundle, each judged like a pull.

    The index must be signed by a trusted signer or a known peer, each artifact by a trusted signer. All are taken or
    none. An import that was cut off goes on with the chunks that are missing.
    """
    from kvsync.bundle import import_bundle

    fingerprints = None if model is None else open_engine(run, model, dtype, device).fingerprints
    with run.store() as store, run.progress() as progress, _opened(file) as opened:
        report = import_bundle(
            store,
            run.trust(),
            opened,
            name=file,
            keys=run.keys(),
            settings=run.settings(),
            fingerprints=fingerprints,
            names=not no_names,
            progress=progress,
            dry_run=dry_run,
        )
    return _outcome(report, "would be taken" if dry_run else "taken")


@contextmanager
def _opened(file: str) -> Iterator[Readable]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError as error:
        raise NotFoundError("file.missing", f"bundle {file} does not exist") from error
    except (OSError, ValueError) as error:
        raise StoreError("file.unreadable", f"bundle {file} cannot be read: {error}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise StoreError("file.unreadable", f"bundle {file} is not a regular file", hint="give - to read a pipe")
    with os.fdopen(descriptor, "rb", buffering=0) as opened:
        yield opened


def _outcome(report: BundleReport, done: str) -> Outcome:
    """For people. In a dry run the status is that of the first rule that refuses."""
    told = f"{plural(report.chunks_moved, 'chunk')}, {size(report.bytes_moved)}"
    facts: list[tuple[str, object]] = [("bundle", report.file), ("packed by", report.exporter), (done, told)]
    if not report.dry_run:
        facts.append(("file", f"{report.bytes_file} bytes ({size(report.bytes_file)})"))
        facts.append(("time", f"{seconds(report.seconds)}, {report.mb_per_s:.1f} MB/s"))
    rows = [
        (
            moved.artifact.short,
            ", ".join(moved.names) or "-",
            size(moved.bytes_total) + ("" if moved.positions is None else ", in part"),
            size(moved.bytes_here),
        )
        for moved in report.artifacts
    ]
    view: list[str | Table | Facts] = [
        Facts(facts),
        "",
        Table(("ARTIFACT", "NAMES", "SIZE", "HERE BEFORE"), rows, frozenset({"SIZE", "HERE BEFORE"})),
    ]
    verdicts = [
        (m.artifact.short, v.policy, "yes" if v.allowed else f"no ({v.code})", v.detail)
        for m in report.artifacts
        for v in m.verdicts
    ]
    if report.dry_run and verdicts:
        view += ["", Table(("ARTIFACT", "POLICY", "ALLOWED", "DETAIL"), verdicts)]
    refused = report.refusals
    return Outcome(report.as_dict(), view, status=refusal_status(refused[0].code) if refused else 0)
