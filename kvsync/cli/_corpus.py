"""`kvsync library ingest`: the documents of a folder as passages of a library, and how passages are shown."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvsync.cli._command import Run
from kvsync.cli._jobs import LocalOption, running_daemon
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, Precision, open_engine
from kvsync.cli._render import Facts, Outcome, Table, plural, seconds

if TYPE_CHECKING:
    from kvsync.daemon.client import DaemonClient
    from kvsync.engines import Engine
    from kvsync.graft.client import Client
    from kvsync.library.corpus.ingest import Compute
    from kvsync.library.corpus.report import Ingested
    from kvsync.library.entries import StoredPassage
    from kvsync.progress import Progress
    from kvsync_protocol.digest import ArtifactId

DEFAULT_TOKENS: Final = 1024
_SHOWN: Final = 20
_WIDTH: Final = 60


def ingest(
    run: Run,
    folder: Annotated[str, typer.Argument(metavar="DIR", help="The folder of the documents.")],
    library: Annotated[str, typer.Option("--library", metavar="NAME", help="A library; made if it is not there.")],
    model: ModelOption = DEFAULT_MODEL,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Longest passage, its heading included.")
    ] = DEFAULT_TOKENS,
    prune: Annotated[
        bool, typer.Option("--prune", help="Drop the passages of documents that are in DIR no more.")
    ] = False,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    local: LocalOption = False,
) -> Outcome:
    """Make the documents of a folder answer questions.

    They are cut into passages at sections and paragraphs, each computed as an artifact of its own. What has not
    changed is not computed again, an interrupted run goes on where it was. A running daemon computes, unless --local
    is given.
    """
    from kvsync.graft.client import Client
    from kvsync.library.corpus.folder import check_folder
    from kvsync.library.corpus.ingest import Ingest
    from kvsync.library.corpus.phrasing import Phrasing
    from kvsync.library.library import Library

    daemon = running_daemon(run, local=local)
    with Client(run.node().root) as client:
        check_folder(Path(folder))
        opened = Library(client, library)
        engine = open_engine(run, model, dtype, device)
        Phrasing(engine, max_tokens)
        if not opened.store.shelf.exists():
            opened = Library.create(client, library)
        compute = _here(client, engine) if daemon is None else _there(daemon, model, dtype, device)
        with run.progress() as progress:
            report = Ingest(
                opened,
                engine,
                Path(folder),
                compute=compute,
                max_tokens=max_tokens,
                prune=prune,
                progress=progress,
            ).run()
    return _outcome(report, in_daemon=daemon is not None)


def _here(client: Client, engine: Engine) -> Compute:
    def compute(text: str, progress: Progress) -> ArtifactId:
        return client.deposit(engine, text, progress=progress).artifact

    return compute


def _there(daemon: DaemonClient, model: str, dtype: Precision | None, device: str) -> Compute:
    """Jobs of the daemon, one after the other; an interrupt cancels the one that runs."""
    from kvsync.cli._models import model_path
    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.params import ComputeParams
    from kvsync_protocol.digest import ArtifactId, Digest

    path, wanted = model_path(model), None if dtype is None else dtype.dtype

    def compute(text: str, progress: Progress) -> ArtifactId:
        job = daemon.submit(JobKind.COMPUTE, ComputeParams(path, text, dtype=wanted, device=device))
        try:
            return ArtifactId(Digest.parse(daemon.wait(job, progress)["artifact"]))
        except KeyboardInterrupt:
            daemon.cancel(job)
            raise

    return compute


def _outcome(report: Ingested, *, in_daemon: bool) -> Outcome:
    from kvsync.library.corpus.folder import REASONS

    rate = f", {report.tokens_per_s:.0f} tokens/s" if report.tokens_computed else ""
    facts = [
        (
            "documents",
            f"{report.documents}: {report.new} new, {report.changed} changed, {report.unchanged} as before",
        ),
        ("passages", f"{report.passages}: {report.computed} computed, {report.removed} removed"),
        ("tokens", f"{report.tokens}: {report.tokens_computed} computed"),
        ("time", f"{seconds(report.seconds)}{rate}"),
    ]
    notes = [f"passed over {each.source}: {REASONS[each.reason]}" for each in report.passed_over[:_SHOWN]]
    counts = Counter(each.reason for each in report.passed_over[_SHOWN:])
    notes += [f"passed over {plural(count, 'more file')}: {REASONS[reason]}" for reason, count in counts.items()]
    if report.gone and not report.pruned:
        kept = plural(len(report.gone), "document")
        notes.append(f"{kept} of before are in the folder no more, and still answer: --prune drops them")
    return Outcome({**report.as_dict(), "daemon": in_daemon}, [Facts(facts)], notes)


def passage_json(stored: StoredPassage) -> dict[str, object]:
    """A passage, its name and who signed it."""
    said = stored.passage
    return {
        "passage": str(stored.digest),
        "signers": [str(key) for key in stored.signers],
        "document": said.source,
        "digest": str(said.document),
        "section": said.section,
        "start": said.start,
        "stop": said.stop,
        "text": said.text,
        "artifact": str(said.artifact),
        "tokens": said.tokens,
        "compatibility": str(said.compatibility),
    }


def passage_view(stored: StoredPassage) -> list[str | Table | Facts]:
    """Everything about one passage."""
    said = stored.passage
    facts = Facts(
        [
            ("passage", stored.digest),
            ("answers", bool(stored.signers)),
            ("document", said.source),
            ("section", said.section or "-"),
            ("characters", f"{said.start}-{said.stop} of {said.characters}"),
            ("artifact", said.artifact),
            ("tokens", said.tokens),
        ]
    )
    return [facts, "", *said.text.strip().splitlines()]


def passage_row(stored: StoredPassage) -> tuple[str, str, int, str]:
    """A passage among entries."""
    said = stored.passage
    place = f"{said.source}, {said.section}" if said.section else said.source
    return stored.digest.short, "yes" if stored.signers else "no", said.tokens, place[:_WIDTH]
