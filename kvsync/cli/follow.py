"""`kvsync follow`: keep this node in step with names that others give."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from kvsync.cli._command import Run, add_group
from kvsync.cli._models import DeviceOption, DTypeOption, open_engine
from kvsync.cli._render import Outcome, Table, seconds

if TYPE_CHECKING:
    from kvsync.daemon.followed import Followed
    from kvsync.daemon.follows import Follow


class _AddByDefault(TyperGroup):
    """`kvsync follow 'team/*'` is `kvsync follow add 'team/*'`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["add", *args]
        return super().parse_args(ctx, args)


def add_commands(app: typer.Typer) -> None:
    add_group(
        app,
        "follow",
        "Keep in step with names that others give; the daemon fetches them.",
        {"add": add, "ls": ls, "rm": rm},
        _AddByDefault,
    )


def add(
    run: Run,
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN", help="A name, team/* or *.")],
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="RULE=VALUE",
            help="Stricter than the settings: require_signers=2, max_artifact_bytes=…; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="MODEL", help="Fetch only what fits this model, by its fingerprints of now."),
    ] = None,
    dtype: DTypeOption = None,
    device: DeviceOption = "cpu",
) -> Outcome:
    """Follow names; the word `add` may be left out.

    The daemon asks its peers and registries for them, and fetches what trusted signers have named, within the
    settings' policies. A later sequence number replaces an earlier one.
    """
    from kvsync.daemon.follows import Follow, Follows
    from kvsync.daemon.pull_policy import PullPolicy

    listed, rules = Follows(run.node()), PullPolicy.of(policy or ())
    fingerprints = None if model is None else open_engine(run, model, dtype, device).fingerprints
    added = [Follow(pattern, rules, model, fingerprints) for pattern in patterns]
    listed.add(added)
    notes = [] if _runs(run) else ["no daemon runs: it fetches them once it does (kvsync daemon start)"]
    return Outcome({"follows": [_as_json(each) for each in added]}, [f"{p} is followed" for p in patterns], notes)


def ls(run: Run) -> Outcome:
    """List what is followed, and how far each name is."""
    from kvsync.daemon.followed import load_followed
    from kvsync.daemon.follows import Follows

    home = run.node()
    follows, followed = Follows(home).follows(), load_followed(home)
    rows = [
        (f.pattern, " ".join(f"{k}={v}" for k, v in f.policy.as_json().items()) or "-", f.model or "-")
        for f in follows
    ]
    names = [
        (each.name, each.artifact.short, each.sequence, each.state, each.code or "-", _again(each))
        for each in sorted(followed.values(), key=lambda each: each.name)
    ]
    data = {
        "follows": [_as_json(each) for each in follows],
        "names": [each.as_json() for each in followed.values()],
    }
    view: list[str | Table] = [Table(("PATTERN", "RULES", "MODEL"), rows)]
    if names:
        view += ["", Table(("NAME", "ARTIFACT", "SEQUENCE", "STATE", "WHY", "AGAIN IN"), names)]
    return Outcome(data, view)


def rm(
    run: Run, patterns: Annotated[list[str], typer.Argument(metavar="PATTERN", help="As it was followed.")]
) -> Outcome:
    """Follow names no longer; what was fetched stays."""
    from kvsync.daemon.follows import Follows

    removed = Follows(run.node()).remove(patterns)
    return Outcome(
        {"follows": [_as_json(each) for each in removed]}, [f"{p.pattern} is not followed" for p in removed]
    )


def _runs(run: Run) -> bool:
    from kvsync.daemon.client import DaemonClient

    return DaemonClient(run.home).running()


def _again(each: Followed) -> str:
    return seconds(max(0.0, each.again - time.time())) if each.again else "-"


def _as_json(follow: Follow) -> dict[str, object]:
    prints = follow.fingerprints
    return {
        "pattern": follow.pattern,
        "policy": follow.policy.as_json(),
        "model": follow.model,
        "compatibility": None if prints is None else str(prints.compatibility.digest),
    }
