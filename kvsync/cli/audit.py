"""`kvsync audit` and `divergences`: check another's computation block by block, and what cannot both be right."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, add_group, command
from kvsync.cli._models import DEFAULT_MODEL, DeviceOption, DTypeOption, ModelOption, Precision, open_engine
from kvsync.cli._render import Facts, Outcome, Table, plural, seconds
from kvsync.cli.artifacts import ArtifactArgument, number_ranges
from kvsync.errors import EXIT_STATUS, NotFoundError
from kvsync_protocol.errors import IntegrityError

if TYPE_CHECKING:
    from kvsync.evidence.audit import AuditReport
    from kvsync.evidence.settle import Settlement
    from kvsync.store import Store, StoredDivergence
    from kvsync_protocol.digest import ArtifactId
    from kvsync_protocol.divergence import Side
    from kvsync_protocol.signing import PublicKey


def add_commands(app: typer.Typer) -> None:
    command(app, "audit")(audit)
    add_group(app, "divergences", "Artifacts that cannot both be right.", {"ls": ls, "show": show})


def audit(
    run: Run,
    artifact: ArtifactArgument,
    blocks: Annotated[
        str, typer.Option("--blocks", metavar="N|all|P%", help="How many blocks, drawn by chance, or all.")
    ] = "all",
    share: Annotated[
        str, typer.Option("--share", metavar="i/n", help="This host's share of them; n hosts take 1/n of the time.")
    ] = "1/1",
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Draw the same blocks again; default: by chance.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Recompute blocks of an artifact and compare bytes.

    Each block is computed from the state before it, in the artifact's own dtype unless --dtype says otherwise. The
    outcome is signed and kept beside the artifact, from where it travels with it. An artifact that fails is not
    grafted here any more; the exit status is 4. A block in dispute (kvsync divergences) is recomputed in any case.
    """
    from kvsync.evidence.audit import audit as run_audit
    from kvsync.evidence.selection import Selection

    selection = Selection.parse(blocks, share, seed)
    with run.store() as store, run.progress() as progress:
        wanted = _wanted(store, artifact)
        engine = open_engine(run, model, dtype or _precision(store, wanted), device)
        report = run_audit(
            store,
            engine,
            run.keys().signer,
            wanted,
            selection,
            accept=run.settings().accept,
            trusted=run.trust().keys(),
            progress=progress,
        )
    return Outcome(report.as_dict(), _view(run, report), status=0 if report.passed else EXIT_STATUS[IntegrityError])


def ls(run: Run) -> Outcome:
    """List pairs of artifacts that cannot both be right.

    Found at a pull or a push before anything moved: one computation, two sets of bytes, both signed.
    """
    with run.store() as store:
        found = store.evidence.divergences()
    rows = [
        (record.name.short, record.divergence.block, *(a.short for a in record.artifacts), record.verdict.value)
        for record in found
    ]
    data = {"divergences": [_as_json(run, record) for record in found]}
    if not rows:
        return Outcome(data, notes=["no divergences"])
    return Outcome(data, [Table(("DIVERGENCE", "BLOCK", "FIRST", "SECOND", "VERDICT"), rows, frozenset({"BLOCK"}))])


def show(
    run: Run,
    divergence: Annotated[
        str, typer.Argument(metavar="WHAT", help="The first 8 or more digits of a divergence, or of an artifact.")
    ],
) -> Outcome:
    """Show the evidence: both sides, who signed, which leaves differ."""
    from kvsync.store.evidence import by_name

    with run.store() as store:
        record = by_name(store.evidence.divergences(), divergence)
        here = [store.whole(artifact) is not None for artifact in record.artifacts]
    view: list[str | Table | Facts] = [
        Facts(
            [
                ("divergence", record.name),
                ("block", record.divergence.block),
                ("verdict", record.verdict.value),
            ]
        )
    ]
    for side, is_here in zip(record.divergence.sides, here, strict=True):
        view += [
            "",
            Facts(
                [
                    ("artifact", side.artifact),
                    ("here", is_here),
                    ("signed by", ", ".join(_signers(run, side)) or "nobody known here"),
                    ("leaves", ", ".join(proven.leaf.digest.short for proven in side.leaves)),
                ]
            ),
        ]
    notes = (
        [] if record.settled or not any(here) else [f"hint: kvsync audit {record.artifacts[here.index(True)].short}"]
    )
    return Outcome({**_as_json(run, record), "here": here}, view, notes)


def _wanted(store: Store, name: str) -> ArtifactId:
    """An artifact here, or one that stands in a divergence."""
    from kvsync.store.evidence import by_name

    try:
        return store.artifact(store.resolve(name)).artifact
    except NotFoundError as error:
        try:
            record = by_name(store.evidence.divergences(), name)
        except NotFoundError:
            raise error from None
        digits = name.removeprefix("sha256:")
        return next((a for a in record.artifacts if a.hex.startswith(digits)), record.artifacts[0])


def _precision(store: Store, artifact: ArtifactId) -> Precision | None:
    """The element type that the artifact was computed in, where the command line says nothing."""
    try:
        layout = store.artifact(artifact).manifest.layout
    except NotFoundError:
        return None
    kinds = {getattr(group, "dtype", None) for group in layout.groups}
    return next((precision for precision in Precision if precision.dtype in kinds), None)


def _view(run: Run, report: AuditReport) -> list[str | Table | Facts]:
    facts: list[tuple[str, object]] = [
        ("artifact", report.artifact),
        (
            "recomputed",
            f"{len(report.blocks)} of {plural(report.total_blocks, 'block')}: {number_ranges(report.blocks)}",
        ),
        ("final logits", "recomputed" if report.logits else "not asked for"),
        ("bytes equal", report.passed),
        ("computed", f"{plural(report.tokens, 'token')} in {seconds(report.seconds)}"),
    ]
    if report.coverage is not None:
        facts.append(
            ("audited by this node", f"{report.coverage.percent} % of {plural(report.total_blocks, 'block')}")
        )
    if report.tolerated:
        facts.append(("tolerated", ", ".join(difference.field for difference in report.tolerated)))
    view: list[str | Table | Facts] = [Facts(facts)]
    if report.wrong:
        rows = [
            ("logits" if w.block == report.total_blocks else w.block, w.leaf, w.group, w.signed.short, w.found.short)
            for w in report.wrong
        ]
        view += ["", Table(("BLOCK", "LEAF", "GROUP", "SIGNED", "COMPUTED"), rows, frozenset({"LEAF"}))]
        where = "the final logits are" if report.first_wrong == report.total_blocks else _from(report)
        view.append(f"{where} not what this host computes")
    for settlement in report.settled:
        view.append(_settled(run, settlement))
    return view


def _from(report: AuditReport) -> str:
    """Where the fault begins, as far as this audit can tell."""
    if report.exactly:
        return f"from block {report.first_wrong} on, and not before, the bytes are"
    return f"from block {report.first_wrong} on, or from an earlier one that was not recomputed, the bytes are"


def _settled(run: Run, settlement: Settlement) -> str:
    names = _names(run)
    losers = ", ".join(names.get(key, str(key)) for key in settlement.signers) or "nobody trusted here any more"
    right = ", ".join(artifact.short for artifact in settlement.right) or "neither side"
    if not settlement.wrong:
        return f"divergence {settlement.divergence.short}: both sides are right where they were compared"
    wrong = ", ".join(artifact.short for artifact in settlement.wrong)
    return (
        f"divergence {settlement.divergence.short} is settled: {right} is right, {wrong} is wrong, signed by {losers}"
    )


def _names(run: Run) -> dict[PublicKey, str]:
    """What the signers known here are called."""
    trust = run.trust()
    counting = trust.keys()
    names = {key: f"key {key.key_id}" for key in counting}
    return {**names, trust.own: "this node", **{signer.key: signer.name for signer in trust.signers()}}


def _signers(run: Run, side: Side) -> list[str]:
    names = _names(run)
    return [names[key] for key in side.envelope.signers(names)]


def _as_json(run: Run, record: StoredDivergence) -> dict[str, object]:
    return {
        "divergence": str(record.name),
        "block": record.divergence.block,
        "settled": record.settled,
        "verdict": record.verdict.value,
        "sides": [
            {
                "artifact": str(side.artifact),
                "signers": _signers(run, side),
                "leaves": [str(proven.leaf.digest) for proven in side.leaves],
                "envelope": side.envelope.encode().decode(),
            }
            for side in record.divergence.sides
        ],
    }
