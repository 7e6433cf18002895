"""`kvsync receipts`: check, show and compare receipts. Needs no model, no engine and no home."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvsync.cli import _evidence
from kvsync.cli._command import Run, add_group
from kvsync.cli._evidence import FileArgument, PublicKeyOption
from kvsync.cli._fields import meaning
from kvsync.cli._render import Facts, Outcome, Table, plural
from kvsync.errors import EXIT_STATUS, UsageError
from kvsync_protocol.errors import MismatchError

if TYPE_CHECKING:
    from kvsync.library.evaluation.judged import Judged
    from kvsync_protocol.receipt import Receipt

_GIVEN: Final = ("mode", "document", "shared", "new", "condition", "task", "split")
"""Members that say which record it is, as far as its kind has them."""


def add_commands(app: typer.Typer) -> None:
    text = "Signed records of runs: check, show, compare."
    add_group(app, "receipts", text, {"check": check, "show": show, "diff": diff})


def check(
    run: Run,
    file: FileArgument,
    public_key: PublicKeyOption = None,
    reverify: Annotated[
        bool,
        typer.Option(
            "--reverify",
            help="Also judge again what patterns, schemas, mathematics and Python tests have judged, in the sandbox.",
        ),
    ] = False,
) -> Outcome:
    """Check a receipt again, without the model.

    Form, signature, Merkle root, count, every equality, every figure, the summary, that the samples are those of
    the seed, and verdicts that follow from an answer's text. Any edit is an error with a code of its own. Without
    --public-key the signature is checked against the key that the receipt names. --reverify runs programs that the
    receipt holds, and so needs --public-key.
    """
    keys = _evidence.public_keys(public_key)
    if reverify and not keys:
        raise UsageError(
            "receipt.reverify",
            "programs of whoever signed it would run",
            hint="give --public-key, once you know whose it is",
        )
    receipt = _evidence.parse_receipt(file, keys)
    with run.progress() as progress:
        judged = _evidence.judged(receipt, run=reverify, progress=progress)
    verdicts = None if judged is None else dataclasses.asdict(judged)
    data = {"sound": True, "trusted": bool(keys), "verdicts": verdicts, **_evidence.receipt_json(receipt)}
    checks = "form, signature, root, count, samples, equalities, figures, summary"
    facts: list[tuple[str, object]] = [("sound", True), ("checked", checks)]
    if judged is not None:
        facts.append(("verdicts", _verdicts(judged)))
    view = [
        Facts(facts),
        _evidence.header_facts(receipt),
        "",
        *_evidence.summary_view(receipt),
    ]
    return Outcome(data, view, [] if keys else [_unknown_signer(receipt)])


def show(run: Run, file: FileArgument) -> Outcome:
    """Show a receipt with its records, once it is checked."""
    from kvsync_protocol.scorers import scorer

    receipt = _evidence.read_receipt(file, [])
    known = scorer(receipt.header.kind)
    rows: list[tuple[object, ...]] = []
    given = [name for name in _GIVEN if name in receipt.records[0]]
    for index, record in enumerate(receipt.records):
        outputs = known.outputs(record)
        rows.append(
            (
                index,
                *(record[name] for name in given),
                *(value.removeprefix("sha256:")[:12] for value in outputs.values()),
            )
        )
    names = [name.upper() for name in known.outputs(receipt.records[0])]
    view = [
        _evidence.header_facts(receipt),
        "",
        Table(("#", *map(str.upper, given), *names), rows),
        "",
        *_evidence.summary_view(receipt),
    ]
    data = {**_evidence.receipt_json(receipt), "records": [dict(record) for record in receipt.records]}
    return Outcome(data, view, [_unknown_signer(receipt)])


def diff(
    run: Run,
    first: Annotated[str, typer.Argument(metavar="A", help="A receipt or preregistration.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Another, usually of another host.")],
) -> Outcome:
    """Compare the outputs of two receipts for equal inputs.

    Names which outputs differ, and which fields of the fingerprints do. The exit status is 6 unless there are
    equal inputs and all their outputs agree.
    """
    from kvsync_protocol.scorers import scorer

    ours, theirs = (_evidence.read_receipt(name, []) for name in (first, second))
    left, right = (
        {scorer(r.header.kind).inputs(each): scorer(r.header.kind).outputs(each) for each in r.records}
        for r in (ours, theirs)
    )
    common = [name for name in left if name in right]
    differing = [
        {"inputs": name, "outputs": [each for each, value in left[name].items() if right[name].get(each) != value]}
        for name in common
        if left[name] != right[name]
    ]
    prints = ours.header.fingerprints, theirs.header.fingerprints
    fields = [
        *prints[0].compatibility.differences(prints[1].compatibility),
        *prints[0].numerics.differences(prints[1].numerics),
    ]
    agree = bool(common) and not differing
    data = {
        "agree": agree,
        "common": len(common),
        "only_first": len(left) - len(common),
        "only_second": len(right) - len(common),
        "differing": differing,
        "fields": [
            {"field": f.field, "kind": f.kind.value, "meaning": meaning(f.field), "first": f.ours, "second": f.theirs}
            for f in fields
        ],
    }
    view: list[str | Table | Facts] = [
        Facts(
            [
                (
                    "equal inputs",
                    f"{len(common)}; {len(left) - len(common)} only in {first}, "
                    f"{len(right) - len(common)} only in {second}",
                ),
                ("equal outputs", f"{len(common) - len(differing)} of {len(common)}"),
                ("agree", agree),
            ]
        )
    ]
    if differing:
        view += [
            "",
            Table(("INPUTS", "DIFFERING"), [(_short(d["inputs"]), ", ".join(d["outputs"])) for d in differing]),
        ]
    if fields:
        rows = [(f.field, f.kind.value, _cell(f.ours), _cell(f.theirs), meaning(f.field)) for f in fields]
        view += ["", Table(("FIELD", "FINGERPRINT", "A", "B", "MEANING"), rows)]
    notes = [] if fields else [f"{plural(0, 'field')} of the fingerprints differ"]
    return Outcome(data, view, notes, status=0 if agree else EXIT_STATUS[MismatchError])


def _verdicts(judged: Judged) -> str:
    """How many follow from the receipt alone, and why the others do not."""
    parts = [f"{judged.again} of {judged.every} judged again"]
    if judged.taken:
        parts.append(f"{judged.taken} taken as they are, by verifiers that did not run here")
    if judged.unkept:
        parts.append(f"{judged.unkept} taken as they are, of answers that are not kept")
    return "; ".join(parts)


def _unknown_signer(receipt: Receipt) -> str:
    return f"signed by {receipt.header.signer}: compare it with a key that you know, or give --public-key"


def _short(name: object) -> str:
    return str(name).removeprefix("sha256:")[:16]


def _cell(value: str | None) -> str:
    text = "-" if value is None else value
    return text if len(text) <= 40 else f"{text[:39]}…"
