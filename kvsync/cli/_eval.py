"""`kvsync library eval`: what a library brings on a file of tasks, in one signed receipt."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvsync.cli import _evidence
from kvsync.cli._command import Run
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, seconds
from kvsync.errors import UsageError

if TYPE_CHECKING:
    from kvsync.library.evaluation.plan import Plan

DEFAULT_CONDITIONS: Final = "control,recurrence,transfer,negative"
_ORDER: Final = ("control", "fill", "recurrence", "transfer", "negative", "stream")


def evaluate(
    run: Run,
    file: Annotated[str, typer.Argument(metavar="TASKS", help="A file of tasks, one a line, with their answers.")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="Where to write the receipt.")],
    model: ModelOption = DEFAULT_MODEL,
    verifier: Annotated[
        str | None,
        typer.Option(
            "--verifier", metavar="SPEC", help="Judges in place of the tasks' own, with each task's answer."
        ),
    ] = None,
    library: Annotated[
        str | None,
        typer.Option("--library", metavar="NAME", help="Measure this library, not one made of the train tasks."),
    ] = None,
    conditions: Annotated[
        str, typer.Option("--conditions", metavar="LIST", help="Which of the four, with commas between them.")
    ] = DEFAULT_CONDITIONS,
    unrelated: Annotated[
        str | None,
        typer.Option("--unrelated", metavar="TASKS", help="What the negative control's library is made of."),
    ] = None,
    budget: Annotated[
        int, typer.Option("--budget", metavar="TOKENS", min=1, help="Decoded tokens for each problem and condition.")
    ] = 256,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", min=0, help="Of sampling, and of a stream's order.")
    ] = 0,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="FILE", help="Order and gates of the strategies, as TOML.")
    ] = None,
    per_split: Annotated[
        int | None, typer.Option("--per-split", metavar="N", min=1, help="Use the first N tasks of each split.")
    ] = None,
    stream: Annotated[
        int, typer.Option("--stream", metavar="N", min=0, help="Instead: N problems in turn, from an empty library.")
    ] = 0,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="PERCENT", min=0, max=100, help="Of a stream, how many come again.")
    ] = 50,
    teach: Annotated[
        bool, typer.Option("--teach", help="In a stream, store the task's solution behind a problem that failed.")
    ] = False,
    plain: Annotated[
        int,
        typer.Option(
            "--plain", metavar="N", min=0, help="Compare N grafted answers of each condition with plain ones."
        ),
    ] = 0,
    watts: Annotated[
        float, typer.Option("--watts", metavar="W", min=0.001, help="Of a busy core, where energy is not measured.")
    ] = 15.0,
    plot: Annotated[
        str | None, typer.Option("--plot", metavar="FILE", help="Also draw the plot as PNG; needs matplotlib.")
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Measure what a library brings, in a signed receipt.

    Four numbers, kept apart: control (an empty library), recurrence (problems whose solutions are stored), transfer
    (held-out problems of the same family) and negative (a library of unrelated entries). A killed run goes on where
    it was when the same command is given again; until then its state lies in FILE.work.
    """
    import time

    from kvsync.evidence.plot import check_plotting
    from kvsync.evidence.prove import software
    from kvsync.graft.client import Client
    from kvsync.library.evaluation.chart import save_png
    from kvsync.library.evaluation.energy import EnergyMeter
    from kvsync.library.evaluation.evaluation import Evaluation
    from kvsync.library.library import Library
    from kvsync_protocol.receipt import Receipt
    from kvsync_protocol.trial_score import SCORER

    for name in (out, plot):
        _evidence.check_out(name)
    if plot is not None:
        check_plotting()
    plan = _plan(
        file, verifier, conditions, unrelated, budget, seed, recipe, per_split, stream, repeats, teach, plain
    )
    signer = run.keys().signer
    with ExitStack() as stack:
        given = None
        if library is not None:
            client = stack.enter_context(Client(run.node().root))
            given = Library.open(client, library)
        engine = open_engine(run, model, dtype, device)
        progress = stack.enter_context(run.progress())
        meter = EnergyMeter(device, watts)
        path = Path(out).absolute()
        work = path.with_name(path.name + ".work")
        trial = Evaluation(
            plan, engine, _evidence.model_name(model), work, meter=meter, library=given, progress=progress
        )
        records = trial.run()
    receipt = Receipt.seal(
        SCORER,
        signer,
        [record.as_json() for record in records],
        run=trial.trial.as_json(),
        fingerprints=engine.fingerprints,
        software=software(),
        time=int(time.time()),
    )
    _evidence.write_receipt(receipt, out)
    trial.finish()
    summary = receipt.header.summary
    if plot is not None:
        save_png(summary, path.stem, Path(plot).absolute())
    data = {"file": str(path), "plot": plot, **_evidence.receipt_json(receipt)}
    facts = Facts([("receipt", path), ("check it", f"kvsync receipts check {path.name}")])
    return Outcome(data, [*_evidence.summary_view(receipt), "", facts])


def summary_table(summary: dict[str, Any]) -> list[str | Table | Facts]:
    """A table of conditions or windows, comparisons with the control, and the plot."""
    from kvsync.library.evaluation.chart import TITLE, bars, places
    from kvsync_protocol import figure

    parts = {name: summary["conditions"][name] for name in _ORDER if name in summary["conditions"]}
    parts |= {f"window {number}": each for number, each in enumerate(summary.get("windows", ()), 1)}
    rows = [
        (
            name,
            each["problems"],
            f"{_percent(each['accuracy'])} ({_percent(each['low'])} to {_percent(each['high'])})",
            each["decoded"],
            each["prefilled"],
            each["grafted"],
            seconds(figure.read(each["seconds"])),
            f"{figure.read(each['joules']):.0f} J",
            ", ".join(f"{strategy} {count}" for strategy, count in each["answered"].items()),
        )
        for name, each in parts.items()
    ]
    headers = ("CONDITION", "PROBLEMS", "PASSED, %", "DECODED", "PREFILLED", "GRAFTED", "TIME", "ENERGY", "BY")
    view: list[str | Table | Facts] = [Table(headers, rows, frozenset(headers[1:8])), ""]
    facts: list[tuple[str, object]] = []
    for name in ("recurrence", "transfer", "negative"):
        if name in summary:
            facts += _compared(name, summary[name])
    for name, each in parts.items():
        if each["plain"]["checked"]:
            facts.append((f"{name}: graft = text", f"{each['plain']['equal']} of {each['plain']['checked']} equal"))
        if each["skipped"]:
            facts.append((f"{name}: passed over", ", ".join(f"{code} {n}" for code, n in each["skipped"].items())))
    return [*view, Facts(facts), "", TITLE, *bars(places(summary))]


def _compared(name: str, found: dict[str, Any]) -> list[tuple[str, object]]:
    from kvsync_protocol import figure

    points, low, high = (figure.read(found[each]) for each in ("points", "points_low", "points_high"))
    facts: list[tuple[str, object]] = [
        (f"{name} against control", f"{points:+.1f} points ({low:+.1f} to {high:+.1f})"),
    ]
    if name == "recurrence":
        factor = "none decoded" if found["factor"] is None else f"{figure.read(found['factor']):.1f} times fewer"
        facts.append(("decoded tokens", factor))
        facts.append(
            (
                "never solved unaided",
                f"{found['never_solved_answered']} of {found['never_solved']} answered, "
                f"{found['never_solved_decoded']} decoded tokens against {found['never_solved_control_decoded']}",
            )
        )
        facts.append(("reuses until an entry pays", found["break_even"]))
    return facts


def _percent(text: str) -> str:
    from kvsync_protocol import figure

    return f"{100 * figure.read(text):.1f}"


def _plan(
    file: str,
    verifier: str | None,
    conditions: str,
    unrelated: str | None,
    budget: int,
    seed: int,
    recipe: Path | None,
    per_split: int | None,
    stream: int,
    repeats: int,
    teach: bool,
    plain: int,
) -> Plan:
    """Raises MalformedError `tasks.*`, UsageError `eval.*`, `recipe.*`, `verifier.*`."""
    from kvsync.library.evaluation.plan import Plan, at_most, chosen, different, stream_of, unrelated_to
    from kvsync.library.recipe import Recipe
    from kvsync.library.tasks import read_tasks

    tasks = different(read_tasks(Path(file)), verifier)
    if per_split is not None:
        tasks = at_most(tasks, per_split)
    asked = chosen(conditions.split(","))
    others = () if unrelated is None else different(read_tasks(Path(unrelated)))
    if not all(task.solution for task in others):
        raise UsageError("eval.unrelated", f"{unrelated}: a task without a solution cannot be stored")
    return Plan(
        tasks,
        conditions=asked,
        budget=budget,
        seed=seed,
        recipe=Recipe() if recipe is None else Recipe.load(recipe),
        unrelated=others or (unrelated_to(tasks, seed) if "negative" in asked else ()),
        stream=stream_of(tasks, stream, repeats, seed),
        repeats=repeats if stream else 0,
        teach=teach,
        plain=plain,
    )
