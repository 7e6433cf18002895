"""`kvsync pull` and `push`: exchange an artifact with one known peer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._jobs import LocalOption, do, running_daemon
from kvsync.cli._models import DeviceOption, DTypeOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, seconds, size
from kvsync.cli.artifacts import ArtifactArgument
from kvsync.errors import EXIT_STATUS

if TYPE_CHECKING:
    from kvsync.sync import PullReport, PushReport
    from kvsync_protocol.fingerprint import Fingerprints

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Move nothing; tell what would move, and what every policy says.")
]


def add_commands(app: typer.Typer) -> None:
    command(app, "pull")(pull)
    command(app, "push")(push)


def pull(
    run: Run,
    peer: Annotated[str, typer.Argument(help="A peer's name or key, from `kvsync peer ls`.")],
    wanted: Annotated[str, typer.Argument(metavar="WHAT", help="A name, or an artifact's full id.")],
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Compare fingerprints with this model's before any download."),
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    dry_run: DryRunOption = False,
    local: LocalOption = False,
) -> Outcome:
    """Fetch an artifact from a peer.

    The signature is checked before any download, every chunk on arrival. A pull that was cut off goes on with
    the chunks that are missing. A running daemon does the work, unless --local or --dry-run is given.
    """
    run.peers().get(peer)
    fingerprints = None if model is None else open_engine(run, model, dtype, device).fingerprints
    daemon = running_daemon(run, local=local or dry_run)
    if daemon is None:
        return _outcome(_pull_here(run, peer, wanted, fingerprints, dry_run=dry_run).as_dict(), "fetched")
    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.params import PullParams

    return _outcome(do(run, daemon, JobKind.PULL, PullParams(peer, wanted, fingerprints)), "fetched")


def push(
    run: Run,
    peer: Annotated[str, typer.Argument(help="A peer's name or key, from `kvsync peer ls`.")],
    artifact: ArtifactArgument,
    dry_run: DryRunOption = False,
    local: LocalOption = False,
) -> Outcome:
    """Send an artifact to a peer.

    The peer judges it by its own trust list, and must let this node push. A running daemon does the work,
    unless --local or --dry-run is given.
    """
    run.peers().get(peer)
    with run.store() as store:
        found = store.artifact(store.resolve(artifact)).artifact
    daemon = running_daemon(run, local=local or dry_run)
    if daemon is None:
        import asyncio

        from kvsync import sync

        with run.store() as store, run.progress() as progress:
            work = sync.push(
                store,
                run.peers().get(peer),
                found,
                keys=run.keys(),
                settings=run.settings(),
                progress=progress,
                dry_run=dry_run,
            )
            report: PushReport = asyncio.run(work)
        return _outcome(report.as_dict(), "sent")
    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.params import PushParams

    return _outcome(do(run, daemon, JobKind.PUSH, PushParams(peer, str(found))), "sent")


def _pull_here(run: Run, peer: str, wanted: str, fingerprints: Fingerprints | None, *, dry_run: bool) -> PullReport:
    import asyncio

    from kvsync import sync

    with run.store() as store, run.progress() as progress:
        work = sync.pull(
            store,
            run.trust(),
            run.peers().get(peer),
            wanted,
            keys=run.keys(),
            settings=run.settings(),
            fingerprints=fingerprints,
            progress=progress,
            dry_run=dry_run,
        )
        return asyncio.run(work)


def _outcome(found: Mapping[str, object], done: str) -> Outcome:
    """A transfer's report for people. In a dry run the status is that of the first policy that refuses."""
    number = {
        key: _number(found.get(key)) for key in ("chunks", "chunks_moved", "bytes_moved", "bytes_here", "resent")
    }
    rate = found.get("mb_per_s")
    moved = f"{number['chunks_moved']:.0f} of {number['chunks']:.0f} chunks, {size(int(number['bytes_moved']))}"
    facts: list[tuple[str, object]] = [
        ("artifact", found["artifact"]),
        ("name", found.get("name") or "-"),
        ("would be " + done if found["dry_run"] else done, moved),
        ("already there" if done == "sent" else "already here", size(int(number["bytes_here"]))),
    ]
    if not found["dry_run"]:
        facts.append(("time", f"{seconds(_number(found.get('seconds')))}, {_number(rate):.1f} MB/s while moving"))
    if number["resent"]:
        facts.append(("moved again", f"{number['resent']:.0f} chunks that arrived damaged"))
    verdicts = [verdict for verdict in _list(found.get("verdicts")) if isinstance(verdict, dict)]
    rows = [(v["policy"], "yes" if v["allowed"] else f"no ({v['code']})", v["detail"]) for v in verdicts]
    view: list[str | Table | Facts] = [Facts(facts)]
    if found["dry_run"]:
        view += ["", Table(("POLICY", "ALLOWED", "DETAIL"), rows)]
    refused = [str(verdict["code"]) for verdict in verdicts if not verdict["allowed"]]
    return Outcome(dict(found), view, status=_refusal_status(refused[0]) if refused else 0)


def _refusal_status(code: str) -> int:
    from kvsync.errors import PolicyError
    from kvsync_protocol.errors import MismatchError

    return EXIT_STATUS[MismatchError if code.startswith("mismatch.") else PolicyError]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
