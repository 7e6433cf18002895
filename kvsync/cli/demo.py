"""`kvsync demo`: the whole promise on one machine, and the table that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._document import read_document
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, ModelOption, Precision
from kvsync.cli._render import Facts, Outcome, Table, seconds, size
from kvsync.errors import EXIT_STATUS
from kvsync_protocol.errors import IntegrityError

if TYPE_CHECKING:
    from kvsync.demo.result import DemoResult, Pair


def add_commands(app: typer.Typer) -> None:
    command(app, "demo")(demo)


def demo(
    run: Run,
    model: ModelOption = DEFAULT_MODEL,
    dtype: Annotated[Precision, typer.Option("--dtype", help="Weights, arithmetic and KV state.")] = Precision.FP32,
    device: DeviceOption = "cpu",
    doc: Annotated[
        str | None,
        typer.Option(
            "--doc", metavar="FILE", help="A text; default the first sections of the protocol's specification."
        ),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the nodes' homes and say where they are.")] = False,
) -> Outcome:
    """Show the whole promise on this machine.

    Three nodes with daemons of their own: compute on A, pull to B, push to C, graft on B in a fresh process,
    compare with the fresh computation, and refuse what was tampered with. The exit status is 4 unless every
    check held.
    """
    from kvsync import models
    from kvsync.demo import DemoOptions, run_demo

    text = None if doc is None else read_document(doc)
    with run.progress() as progress:
        if model in models.CATALOG:
            models.fetch(model, progress)
        options = DemoOptions(
            model=models.resolve(model).absolute(),
            model_name=model,
            dtype=dtype.dtype.value,
            device=device,
            document=text,
            keep=keep,
        )
        result = run_demo(options, progress)
    return outcome(result)


def outcome(result: DemoResult) -> Outcome:
    """The last screen, and a status that is 0 only if every check held."""
    notes = [] if result.kept is None else [f"the nodes' homes are in {result.kept}"]
    return Outcome(result.as_dict(), _screen(result), notes, 0 if result.ok else EXIT_STATUS[IntegrityError])


def _screen(result: DemoResult) -> list[str | Table | Facts]:
    return [
        f"{result.model} in {result.dtype}: {result.document_tokens} tokens of a document, "
        f"{result.question_tokens} of a question",
        "",
        Table(
            ("", "FRESH", "GRAFT", "EQUAL"),
            [
                _row("all new logits", result.logits_sha256),
                _row("32 decode steps", result.decode_sha256),
                (
                    "first token after",
                    seconds(result.ttft_fresh_s),
                    seconds(result.ttft_graft_s),
                    f"{result.speedup:.0f}× faster",
                ),
                ("tokens computed", result.document_tokens + result.question_tokens, result.tokens_recomputed, ""),
            ],
        ),
        "",
        Facts(
            [
                ("artifact", result.artifact),
                ("computed", f"{result.compute_tokens_s:.0f} tokens/s"),
                ("size", f"{size(result.artifact_bytes)} in {result.chunks} chunks"),
                ("pulled, verified", f"{result.pull_mb_s:.0f} MB/s"),
                ("pushed, verified", f"{result.push_mb_s:.0f} MB/s"),
                ("graft", ", ".join(f"{stage} {seconds(value)}" for stage, value in result.graft_seconds.items())),
                ("checks passed", ", ".join(result.checks)),
                (
                    "one-shot prefill",
                    f"another reference: KL {result.one_shot.kl:.2e}, "
                    f"{'equal' if result.one_shot.argmax_equal else 'other'} argmax",
                ),
            ]
        ),
        "",
        Table(("TAMPERED", "REFUSED WITH"), list(result.refusals.items())),
        "",
        Facts(
            [
                ("live cache untouched", result.live_cache_untouched),
                ("exact", result.exact),
                ("every check held", result.ok),
            ]
        ),
    ]


def _row(what: str, pair: Pair) -> tuple[str, str, str, str]:
    return what, _short(pair.fresh), _short(pair.graft), "yes" if pair.equal else "NO"


def _short(digest: str) -> str:
    text = digest.removeprefix("sha256:")
    return f"{text[:16]}…" if len(text) > 16 else text
