"""`kvsync solve`: answer a problem from a library, or find the answer and store it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._library import VerifierOption, open_verifier
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, seconds
from kvsync.errors import EXIT_STATUS, NotFoundError

DEFAULT_BUDGET: Final = 2048


def add_commands(app: typer.Typer) -> None:
    command(app, "solve")(solve)


def solve(
    run: Run,
    problem: Annotated[str, typer.Argument(metavar="PROBLEM", help="The problem's text.")],
    library: Annotated[str, typer.Option("--library", metavar="NAME", help="A library, from `kvsync library ls`.")],
    verifier: VerifierOption,
    model: ModelOption = DEFAULT_MODEL,
    budget: Annotated[
        int,
        typer.Option("--budget", metavar="TOKENS", min=1, help="Decoded tokens that all attempts together may cost."),
    ] = DEFAULT_BUDGET,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="Order and gates of the strategies, as TOML.")
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Answer a problem from a library, or by trying.

    Strategies in turn: the stored solution of this very problem, a related one as a worked example, the model
    alone, the model alone with other seeds. Every candidate goes through the verifier; a new solution that passes is
    stored. Status 7 when nothing passed within the budget.
    """
    from kvsync.graft.client import Client
    from kvsync.library.library import Library
    from kvsync.library.recipe import Recipe

    followed = Recipe() if recipe is None else Recipe.load(recipe)
    judge = open_verifier(verifier)
    with Client(run.node().root) as client:
        opened = Library.open(client, library)
        empty = not opened.store.listing().entries
        engine = open_engine(run, model, dtype, device)
        with run.progress() as progress:
            solved = opened.solve(problem, engine, judge, budget=budget, recipe=followed, progress=progress)
    rows = [
        (name, cost.decoded, cost.prefilled, cost.grafted, seconds(cost.seconds))
        for name, cost in solved.costs.items()
    ]
    headers = ("STRATEGY", "DECODED", "PREFILLED", "GRAFTED", "TIME")
    facts = [("answered by", solved.strategy or "nothing within the budget")]
    if solved.deposited is not None:
        facts.append(("stored as", str(solved.deposited.entry or f"nothing: {solved.deposited.refused}")))
    facts += [("quarantined", str(digest)) for digest in solved.quarantined]
    notes = [f"{each.strategy}: passed over, {each.passed_over}" for each in solved.attempts if each.passed_over]
    if empty:
        notes.insert(0, f"{library} was empty")
    view: list[str | Table | Facts] = [*(solved.answer or "").splitlines(), ""]
    view += [Facts(facts), Table(headers, rows, frozenset(headers[1:]))]
    return Outcome(
        solved.as_dict(), view, notes, status=0 if solved.answer is not None else EXIT_STATUS[NotFoundError]
    )
