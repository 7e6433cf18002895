"""`kvsync library`: collections of verified solutions, and what is in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._corpus import ingest, passage_json, passage_row, passage_view
from kvsync.cli._eval import evaluate
from kvsync.cli._library import LibraryArgument, VerifierOption, entry_json, open_verifier, reverifier
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, plural, seconds, size
from kvsync.cli._tasks import tasks

if TYPE_CHECKING:
    from kvsync.library.entries import EntryStore
    from kvsync.library.library import Library

EntryArgument = Annotated[
    str | None,
    typer.Argument(metavar="ENTRY", help="At least 8 digits of an entry, as `kvsync library show` has them."),
]
_SHOWN: Final = 60


def add_commands(app: typer.Typer) -> None:
    add_group(
        app,
        "library",
        "Verified solutions that answer again.",
        {
            "create": create,
            "ls": ls,
            "show": show,
            "add": add,
            "remove": remove,
            "sync": sync,
            "ingest": ingest,
            "tasks": tasks,
            "eval": evaluate,
        },
    )


def create(run: Run, name: LibraryArgument) -> Outcome:
    """Make an empty library."""
    with _client_library(run, name) as make:
        library = make(True)
    return Outcome({"name": library.name, "entries": 0}, [f"{library.name} is an empty library"])


def ls(run: Run) -> Outcome:
    """List libraries."""
    from kvsync.library.shelf import shelves

    found = [(shelf.name, _entries(run, shelf.name).listing()) for shelf in shelves(run.node())]
    data = [
        {"name": name, "sequence": each.sequence, "entries": len(each.entries), "quarantined": len(each.quarantined)}
        for name, each in found
    ]
    rows = [(name, len(each.entries), len(each.quarantined), each.sequence) for name, each in found]
    headers = ("NAME", "ENTRIES", "QUARANTINED", "SEQUENCE")
    return Outcome({"libraries": data}, [Table(headers, rows, frozenset(headers[1:]))])


def show(run: Run, name: LibraryArgument, entry: EntryArgument = None) -> Outcome:
    """Show a library's entries and passages, or one of them.

    One without a signer who counts here stands in the list and never answers.
    """
    from kvsync.library.entries import StoredEntry, StoredPassage

    library = _entries(run, name)
    listed = library.listing()
    if entry is not None:
        found = library.named(entry)
        history = {each.entry: each.history for each in listed.quarantined}.get(found.digest, ())
        if isinstance(found, StoredPassage):
            return Outcome(passage_json(found), passage_view(found))
        data = {**entry_json(found), "history": [each.as_json() for each in history]}
        said = found.entry
        facts = Facts(
            [
                ("entry", found.digest),
                ("answers", bool(found.signers) and not history),
                ("verifier", f"{said.verifier.name} {said.verifier.version}: {said.detail}"),
                ("artifact", said.artifact),
                ("tokens", said.tokens),
                (
                    "cost",
                    f"{said.cost.decoded} decoded, {said.cost.prefilled} prefilled, {seconds(said.cost.seconds)}",
                ),
                *(("quarantined", each.reason) for each in history),
            ]
        )
        return Outcome(data, [facts, "", *said.problem.splitlines(), "", *said.solution.splitlines()])
    every = list(library.everything())
    stored = [each for each in every if isinstance(each, StoredEntry)]
    passages = [each for each in every if isinstance(each, StoredPassage)]
    passages.sort(key=lambda each: (each.passage.source, each.passage.start))
    data = {
        "name": library.name,
        "sequence": listed.sequence,
        "entries": [entry_json(each) for each in stored],
        "passages": [passage_json(each) for each in passages],
        "quarantined": [each.as_json() for each in listed.quarantined],
    }
    rows = [
        (
            each.digest.short,
            "yes" if each.signers else "no",
            each.entry.tokens,
            " ".join(each.entry.problem.split())[:_SHOWN],
        )
        for each in stored
    ] + [passage_row(each) for each in passages]
    apart = [(each.entry.short, "quarantined", "", each.history[-1].reason[:_SHOWN]) for each in listed.quarantined]
    return Outcome(
        data, [Table(("ENTRY", "ANSWERS", "TOKENS", "PROBLEM OR PASSAGE"), [*rows, *apart], frozenset({"TOKENS"}))]
    )


def add(
    run: Run,
    name: LibraryArgument,
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="The problem's text.")],
    solution: Annotated[str, typer.Option("--solution", metavar="TEXT", help="The solution's text.")],
    verifier: VerifierOption,
    model: ModelOption = DEFAULT_MODEL,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Store a solution that the verifier passes."""
    judge = open_verifier(verifier)
    with _client_library(run, name) as make:
        library = make(False)
        engine = open_engine(run, model, dtype, device)
        with run.progress() as progress:
            stored = library.add(problem, solution, engine, judge, progress=progress)
    view = Facts([("entry", stored.digest), ("artifact", stored.entry.artifact), ("tokens", stored.entry.tokens)])
    return Outcome(entry_json(stored), [view])


def remove(run: Run, name: LibraryArgument, entry: EntryArgument = None) -> Outcome:
    """Remove an entry, or a whole library.

    Artifacts stay until `kvsync rm`; they only lose the library's name.
    """
    with _client_library(run, name) as make:
        library = make(False)
        if entry is None:
            count = len(library.store.listing().entries)
            library.delete()
            return Outcome({"name": name, "entries": count}, [f"{name} is removed, with {plural(count, 'entry')}"])
        found = library.store.named(entry)
        library.remove(found.digest)
    return Outcome({"name": name, "entry": str(found.digest)}, [f"{found.digest.short} is removed from {name}"])


def sync(
    run: Run,
    name: LibraryArgument,
    peer: Annotated[str, typer.Argument(help="A peer's name or key, from `kvsync peer ls`.")],
    reverify: Annotated[
        bool,
        typer.Option("--reverify", help="Run each entry's verifier here before it is taken, and for those here."),
    ] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Take only artifacts that this model can graft.")
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Take a library's new entries and passages from a peer.

    They count by the keys that signed them, not by who carries them. What the peer's list has in quarantine
    leaves this library, too.
    """
    import asyncio

    from kvsync.library.sync import LibrarySync

    library, found = _entries(run, name), run.peers().get(peer)
    fingerprints = None if model is None else open_engine(run, model, dtype, device).fingerprints
    with run.store() as store, run.progress() as progress:
        work = LibrarySync(
            library,
            store,
            run.trust(),
            found,
            keys=run.keys(),
            settings=run.settings(),
            fingerprints=fingerprints,
            judge=reverifier() if reverify else None,
            progress=progress,
        )
        report = asyncio.run(work.run())
    facts = [
        ("taken", len(report.taken)),
        ("offered", report.offered),
        ("quarantined", len(report.quarantined)),
        ("withdrawn", len(report.withdrawn)),
        ("verified again", report.verified),
        ("moved", size(report.bytes_moved)),
    ]
    refused = [(f"refused {digest.short}", code) for digest, code in report.refused.items()]
    return Outcome(report.as_dict(), [Facts([*facts, *refused])])


def _entries(run: Run, name: str) -> EntryStore:
    """A library without a model."""
    from kvsync.library.entries import EntryStore

    keys = run.keys()
    return EntryStore(run.node(), run.trust(), lambda: keys.current().signer, name)


@contextmanager
def _client_library(run: Run, name: str) -> Iterator[Callable[[bool], Library]]:
    """Opens the library, or makes it."""
    from kvsync.graft.client import Client
    from kvsync.library.library import Library

    with Client(run.node().root) as client:
        yield lambda new: Library.create(client, name) if new else Library.open(client, name)
