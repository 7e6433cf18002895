"""`kvsync library tasks`: a file of generated tasks, and the documents that their answers stand in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvsync.cli._command import Run
from kvsync.cli._render import Facts, Outcome, plural
from kvsync.errors import UsageError

FamilyArgument = Annotated[str, typer.Argument(metavar="FAMILY", help="handbook, procedures, programs or labels.")]


def tasks(
    run: Run,
    family: FamilyArgument,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to write the tasks, one a line.")],
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="From which everything is drawn.")] = 0,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many; about half are held out.")] = 1000,
    corpus: Annotated[
        str | None,
        typer.Option("--corpus", metavar="DIR", help="A new folder for the documents of a family that has some."),
    ] = None,
) -> Outcome:
    """Write tasks of a family, the same for the same seed.

    Half of them are held out, by the hash of their ids. Needs no home and no model.
    """
    from kvsync.files import make_private_dir, write_atomic
    from kvsync.library.tasks import HELD_OUT, generate, write_tasks
    from kvsync.library.tasks import corpus as documents

    path = _new(out)
    folder = None if corpus is None else _new(corpus)
    made = generate(family, seed=seed, count=count)
    texts = {} if folder is None else documents(family, seed=seed, count=count)
    if folder is not None:
        make_private_dir(folder)
        for name, text in texts.items():
            write_atomic(folder / name, text.encode())
    write_atomic(path, write_tasks(made))
    held_out = sum(task.split == HELD_OUT for task in made)
    data = {
        "family": family,
        "seed": seed,
        "file": str(path),
        "tasks": len(made),
        "held_out": held_out,
        "corpus": None if folder is None else str(folder),
        "documents": len(texts),
    }
    facts: list[tuple[str, object]] = [("tasks", f"{len(made)}, {held_out} held out"), ("file", path)]
    if folder is not None:
        facts.append(("corpus", f"{plural(len(texts), 'document')} in {folder}"))
    return Outcome(data, [Facts(facts)])


def _new(name: str) -> Path:
    """Raises UsageError `tasks.exists`, `tasks.folder`."""
    path = Path(name)
    if path.exists():
        raise UsageError("tasks.exists", f"{path} exists already", hint="name a file or folder that does not")
    if not path.parent.is_dir():
        raise UsageError("tasks.folder", f"there is no folder {path.parent}")
    return path
