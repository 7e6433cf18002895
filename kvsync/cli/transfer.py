"""`kvsync pull` and `push`: exchange an artifact with known peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._jobs import LocalOption, do, running_daemon
from kvsync.cli._models import DeviceOption, DTypeOption, open_engine
from kvsync.cli._render import Facts, Outcome, Table, seconds, size
from kvsync.cli.artifacts import ArtifactArgument
from kvsync.errors import EXIT_STATUS, UsageError
from kvsync_protocol.limits import MAX_PROVIDERS

if TYPE_CHECKING:
    from kvsync.keys import Peer
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
    words: Annotated[
        list[str],
        typer.Argument(metavar="[PEER] WHAT", help="A peer, if it alone is meant; a name or an artifact's full id."),
    ],
    source: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="PEER", help="Get it from this peer, too; default, without PEER, from all."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Compare fingerprints with this model's before any download."),
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Fetch only what a graft behind the first so many tokens needs.")
    ] = None,
    blocks: Annotated[int | None, typer.Option(min=1, help="The same, counted in blocks.")] = None,
    dry_run: DryRunOption = False,
    local: LocalOption = False,
) -> Outcome:
    """Fetch an artifact, or the first part of one, from peers.

    From several peers chunks come at once, rarest first; one that lies, stalls or vanishes costs its own part only
    (`kvsync peer ls --blame`). The signature is checked before any download, every chunk on arrival. A pull that was
    cut off goes on with
    the chunks that are missing, also after one of a part. A running daemon does the work, unless --local or
    --dry-run is given.
    """
    if tokens is not None and blocks is not None:
        raise UsageError("pull.part", "a part is a number of tokens or of blocks, not both")
    if len(words) > 2:
        raise UsageError(
            "pull.words", "more than one peer and one artifact", hint="further peers are named by --from"
        )
    wanted = words[-1]
    peers = _sources(run, [*words[:-1], *(source or ())])
    fingerprints = None if model is None else open_engine(run, model, dtype, device).fingerprints
    daemon = running_daemon(run, local=local or dry_run)
    if daemon is None:
        report = _pull_here(run, peers, wanted, fingerprints, dry_run=dry_run, position=tokens, blocks=blocks)
        return _outcome(report.as_dict(), "fetched")
    from kvsync.daemon.messages import JobKind
    from kvsync.daemon.transfer_params import PullParams

    names = [peer.name for peer in peers]
    params = PullParams(names[0], wanted, fingerprints, tuple(names[1:]), tokens=tokens, blocks=blocks)
    return _outcome(do(run, daemon, JobKind.PULL, params), "fetched")


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
    from kvsync.daemon.transfer_params import PushParams

    return _outcome(do(run, daemon, JobKind.PUSH, PushParams(peer, str(found))), "sent")


def _sources(run: Run, names: Sequence[str]) -> list[Peer]:
    """Those that were named, or else everybody with a known address."""
    book = run.peers()
    if names:
        return list({peer.key: peer for peer in map(book.get, names)}.values())
    found = [peer for peer in book.peers() if peer.addresses]
    if not found:
        raise UsageError("pull.no_source", "no peer with an address is known", hint="kvsync join, or kvsync peer add")
    return found[: 1 + MAX_PROVIDERS]


def _pull_here(
    run: Run, peers: list[Peer], wanted: str, fingerprints: Fingerprints | None, **options: Any
) -> PullReport:
    import asyncio

    from kvsync import sync

    with run.store() as store, run.progress() as progress:
        work = sync.pull(
            store,
            run.trust(),
            peers,
            wanted,
            keys=run.keys(),
            settings=run.settings(),
            fingerprints=fingerprints,
            progress=progress,
            **options,
        )
        return asyncio.run(work)


def _outcome(found: Mapping[str, object], done: str) -> Outcome:
    """A transfer's report for people. In a dry run the status is that of the first policy that refuses."""
    number = {
        key: _number(found.get(key))
        for key in ("chunks", "chunks_moved", "bytes_moved", "bytes_here", "bytes_unencrypted", "resent")
    }
    rate = found.get("mb_per_s")
    moved = f"{number['chunks_moved']:.0f} of {number['chunks']:.0f} chunks, {size(int(number['bytes_moved']))}"
    facts: list[tuple[str, object]] = [
        ("artifact", found["artifact"]),
        ("name", found.get("name") or "-"),
        *([("part", f"for a graft at token {position}")] if (position := found.get("position")) is not None else []),
        ("would be " + done if found["dry_run"] else done, moved),
        ("already there" if done == "sent" else "already here", size(int(number["bytes_here"]))),
    ]
    if not found["dry_run"]:
        facts.append(("time", f"{seconds(_number(found.get('seconds')))}, {_number(rate):.1f} MB/s while moving"))
    if number["bytes_unencrypted"]:
        text = f"{size(int(number['bytes_unencrypted']))}, which anybody on the way could read"
        facts.append(("UNENCRYPTED", text))
    sources = [source for source in _list(found.get("sources")) if isinstance(source, dict)]
    if len(sources) > 1:
        facts.append(("from", ", ".join(f"{s['peer']} {size(int(_number(s['bytes'])))}" for s in sources)))
    if number["resent"]:
        facts.append(("moved again", f"{number['resent']:.0f} chunks that arrived damaged"))
    verdicts = [verdict for verdict in _list(found.get("verdicts")) if isinstance(verdict, dict)]
    rows = [(v["policy"], "yes" if v["allowed"] else f"no ({v['code']})", v["detail"]) for v in verdicts]
    view: list[str | Table | Facts] = [Facts(facts)]
    if found["dry_run"]:
        view += ["", Table(("POLICY", "ALLOWED", "DETAIL"), rows)]
    refused = [str(verdict["code"]) for verdict in verdicts if not verdict["allowed"]]
    return Outcome(dict(found), view, status=refusal_status(refused[0]) if refused else 0)


def refusal_status(code: str) -> int:
    from kvsync.errors import PolicyError
    from kvsync_protocol.errors import MismatchError

    return EXIT_STATUS[MismatchError if code.startswith("mismatch.") else PolicyError]


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list | tuple) else []
