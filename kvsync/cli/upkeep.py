"""`kvsync rm`, `pin`, `unpin`, `gc` and `fsck`: what stays in the store, and in what state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._render import Facts, Outcome, Table, plural, size
from kvsync.cli.artifacts import ArtifactArgument, counted
from kvsync.errors import EXIT_STATUS, NotFoundError, UsageError
from kvsync_protocol.errors import IntegrityError, TrustError

if TYPE_CHECKING:
    from kvsync.store import FsckReport


def add_commands(app: typer.Typer) -> None:
    command(app, "rm")(rm)
    command(app, "pin")(pin)
    command(app, "unpin")(unpin)
    command(app, "gc")(gc)
    command(app, "fsck")(fsck)


def rm(run: Run, artifact: ArtifactArgument) -> Outcome:
    """Remove an artifact and its names.

    Chunks that no other artifact has go with the next `kvsync gc`.
    """
    with run.store() as store:
        refs = store.refs()
        try:
            found = store.resolve(artifact)
        except TrustError:  # nobody follows an expired name any more, but it can be forgotten
            found = next(held.artifact for held in refs if held.name == artifact)
        names = [held.name for held in refs if held.artifact == found]
        try:
            store.remove(found)
        except NotFoundError:
            if not names:
                raise
        for name in names:
            store.remove_ref(name)
    return Outcome({"artifact": str(found), "names": names}, [f"{found} is removed"])


def pin(
    run: Run,
    artifact: ArtifactArgument,
    remove: Annotated[bool, typer.Option("--rm", help="Unpin instead.")] = False,
) -> Outcome:
    """Keep an artifact, whatever quota or `rm` say."""
    if remove:
        return unpin(run, artifact)
    with run.store() as store:
        found = store.resolve(artifact)
        store.pin(found)
    return Outcome({"artifact": str(found), "pinned": True}, [f"{found} is pinned"])


def unpin(run: Run, artifact: ArtifactArgument) -> Outcome:
    """Let an artifact be removed again."""
    with run.store() as store:
        found = store.resolve(artifact)
        store.unpin(found)
    return Outcome({"artifact": str(found), "pinned": False}, [f"{found} is not pinned"])


def gc(
    run: Run,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing; tell what would go.")] = False,
) -> Outcome:
    """Remove what nobody needs, and enforce the quota.

    Over the quota, artifacts without a pin and a name go: first what was not used for long and takes little
    time to compute again for the space it takes.
    """
    with run.store() as store:
        report = store.gc(dry_run=dry_run)
        usage = store.usage()
    data: dict[str, object] = {
        "dry_run": dry_run,
        "chunks": report.chunks,
        "bytes": report.bytes,
        "evicted": [str(artifact) for artifact in report.evicted],
        "drafts": report.drafts,
        "temp_files": report.temp_files,
        "quarantined": report.quarantined,
        "left": {
            "artifacts": usage.artifacts,
            "partial": usage.partial,
            "chunks": usage.chunks,
            "bytes": usage.bytes,
            "files": usage.files,
            "quota_bytes": usage.quota_bytes,
            "quota_files": usage.quota_files,
            "free_bytes": usage.free_bytes,
        },
    }
    view: list[str | Table | Facts] = [
        Facts(
            [
                ("chunks", f"{report.chunks}, {size(report.bytes)}"),
                ("evicted artifacts", ", ".join(artifact.short for artifact in report.evicted) or "none"),
                ("abandoned drafts", report.drafts),
                ("temporary files", report.temp_files),
                ("quarantined files", report.quarantined),
                ("left", f"{counted(usage)}, {size(usage.bytes)}"),
            ]
        )
    ]
    return Outcome(data, view, notes=["nothing was changed: this is what would go"] if dry_run else [])


def fsck(
    run: Run,
    repair: Annotated[bool, typer.Option("--repair", help="Fetch bad and missing chunks from --from.")] = False,
    source: Annotated[str | None, typer.Option("--from", metavar="PEER", help="The peer to fetch them from.")] = None,
) -> Outcome:
    """Check every byte in the store.

    What is bad is set aside, so that nothing serves or grafts it. With --repair only the bad and missing
    chunks are fetched again. The exit status is 4 while something is not as it must be.
    """
    if repair != (source is not None):
        raise UsageError("fsck.source", "--repair and --from PEER belong together", hint="kvsync fsck --help")
    with run.store() as store, run.progress() as progress:
        if source is None:
            report = store.fsck(progress=progress)
        else:
            import asyncio

            from kvsync.sync.repair import repair as repair_from

            peer = run.peers().get(source)
            work = repair_from(store, peer, keys=run.keys(), settings=run.settings(), progress=progress)
            report = asyncio.run(work)
    return _fsck_outcome(report)


def _fsck_outcome(report: FsckReport) -> Outcome:
    findings: list[dict[str, object]] = [
        {
            "code": finding.code,
            "name": finding.name,
            "detail": finding.detail,
            "artifacts": [str(artifact) for artifact in finding.artifacts],
            "repaired": finding.repaired,
        }
        for finding in report.findings
    ]
    data: dict[str, object] = {
        "clean": report.clean,
        "sound": report.sound,
        "artifacts": report.artifacts,
        "chunks": report.chunks,
        "bytes": report.bytes,
        "findings": findings,
    }
    checked = f"{plural(report.artifacts, 'artifact')}, {plural(report.chunks, 'chunk')}, {size(report.bytes)}"
    if report.clean:
        return Outcome(data, [f"clean: {checked}"])
    rows = [(f.code, f.name, f.detail, "yes" if f.repaired else "no") for f in report.findings]
    notes = [] if report.sound else ["hint: kvsync fsck --repair --from PEER"]
    status = 0 if report.sound else EXIT_STATUS[IntegrityError]
    return Outcome(data, [Table(("FINDING", "NAME", "DETAIL", "REPAIRED"), rows), checked], notes, status)
