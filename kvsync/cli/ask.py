"""`kvsync ask`: answer a question from the documents of a library, and say where the answer stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, seconds
from kvsync.errors import EXIT_STATUS, NotFoundError

if TYPE_CHECKING:
    from kvsync.library.corpus.report import Asked, Candidate
    from kvsync.library.library import Library

DEFAULT_ANSWER: Final = 64
MAX_TOP: Final = 1000


def add_commands(app: typer.Typer) -> None:
    command(app, "ask")(ask)


def ask(
    run: Run,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question's text.")],
    library: Annotated[str, typer.Option("--library", metavar="NAME", help="A library with documents in it.")],
    model: ModelOption = DEFAULT_MODEL,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", min=1, help="Longest answer.")
    ] = DEFAULT_ANSWER,
    top: Annotated[
        int,
        typer.Option(
            "--top", metavar="K", min=0, max=MAX_TOP, help="List the K likeliest passages instead, without a model."
        ),
    ] = 0,
    show: Annotated[bool, typer.Option("--show", help="Print the passages' text, too.")] = False,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Answer a question from documents, and cite the passage.

    The passage that most likely holds the answer is found by its words, verified and grafted; the answer is decoded
    behind it. Status 7 when no passage matches or none of those that do can be used.
    """
    from kvsync.graft.client import Client
    from kvsync.library.library import Library

    with Client(run.node().root) as client:
        opened = Library.open(client, library)
        if top:
            return _listed(question, opened.route(question, top), library, show=show)
        if not opened.route(question, 1):
            return _nothing(question, library, opened)
        engine = open_engine(run, model, dtype, device)
        with run.progress() as progress:
            asked = opened.ask(question, engine, max_tokens=max_tokens, progress=progress)
    return _answered(asked, library, show=show)


def _answered(asked: Asked, library: str, *, show: bool) -> Outcome:
    notes = [f"passed over {_place(each)}: {each.passed_over}" for each in asked.candidates if each.passed_over]
    if asked.cited is None or asked.answer is None:
        view = [f"no passage of {library} that matches can be used"]
        return Outcome(_json(asked.as_dict(), None, show), view, notes, status=EXIT_STATUS[NotFoundError])
    spent = ", ".join(f"{stage} {seconds(value)}" for stage, value in asked.seconds.items())
    facts = Facts([*_cited(asked.cited), ("time", spent)])
    text = ["", *asked.cited.passage.text.strip().splitlines()] if show else []
    return Outcome(_json(asked.as_dict(), asked.cited, show), [*asked.answer.splitlines(), "", facts, *text], notes)


def _listed(question: str, found: list[Candidate], library: str, *, show: bool) -> Outcome:
    data = {
        "question": question,
        "candidates": [_json(each.as_dict(), each, show) for each in found],
    }
    if not found:
        return Outcome(data, [f"nothing in {library} matches the question"], status=EXIT_STATUS[NotFoundError])
    rows = [(f"{each.score:.2f}", _place(each), each.passage.tokens, each.passage.artifact.short) for each in found]
    view: list[str | Table | Facts] = [Table(("SCORE", "PASSAGE", "TOKENS", "ARTIFACT"), rows, frozenset({"TOKENS"}))]
    for each in found if show else ():
        view += ["", f"{_place(each)}:", *each.passage.text.strip().splitlines()]
    return Outcome(data, view)


def _nothing(question: str, library: str, opened: Library) -> Outcome:
    empty = next(opened.store.passages(), None) is None
    said = f"{library} holds no documents" if empty else f"nothing in {library} matches the question"
    notes = [f"hint: kvsync library ingest DIR --library {library}"] if empty else []
    data: dict[str, object] = {"question": question, "answer": None, "cited": None, "candidates": []}
    return Outcome(data, [said], notes, status=EXIT_STATUS[NotFoundError])


def _json(data: dict[str, object], cited: Candidate | None, show: bool) -> dict[str, object]:
    return data if not show or cited is None else {**data, "text": cited.passage.text}


def _place(candidate: Candidate) -> str:
    said = candidate.passage
    section = f", {said.section}" if said.section else ""
    return f"{said.source}{section}, characters {said.start}-{said.stop}"


def _cited(candidate: Candidate) -> list[tuple[str, object]]:
    said = candidate.passage
    return [
        ("document", said.source),
        ("section", said.section or "-"),
        ("characters", f"{said.start}-{said.stop} of {said.characters}"),
        ("artifact", said.artifact),
        ("score", f"{candidate.score:.2f}"),
    ]
