"""`kvsync transfers`: let chunks move, or not, between this node and its peers, also of transfers under way."""

from __future__ import annotations

from typing import Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._rates import rate
from kvsync.cli._render import Facts, Outcome, Table

PeerArgument = Annotated[
    str | None, typer.Argument(metavar="[PEER]", help="A peer's name or key; without it the whole node.")
]


def add_commands(app: typer.Typer) -> None:
    add_group(app, "transfers", "Pause and resume, see limits.", {"ls": ls, "pause": pause, "resume": resume})


def ls(run: Run) -> Outcome:
    """Show who may move chunks, and how fast."""
    settings, paused = run.settings(), run.node().paused_file.exists()
    rows = [(peer.name, rate(peer.rate), "paused" if peer.paused else "-") for peer in run.peers().peers()]
    data = {
        "rate_bytes_per_s": settings.rate_bytes_per_s,
        "paused": paused,
        "peers": [{"name": p.name, "rate": p.rate, "paused": p.paused} for p in run.peers().peers()],
    }
    node = Facts([("this node", rate(settings.rate_bytes_per_s) + (", paused" if paused else ""))])
    return Outcome(data, [node, "", Table(("PEER", "LIMIT", "STATE"), rows)])


def pause(run: Run, peer: PeerArgument = None) -> Outcome:
    """Move no chunks for now; transfers under way wait.

    What waits here loses no time of its deadline. Others that want chunks of this node are told that it is busy.
    """
    return _set(run, peer, paused=True)


def resume(run: Run, peer: PeerArgument = None) -> Outcome:
    """Let chunks move again."""
    return _set(run, peer, paused=False)


def _set(run: Run, peer: str | None, *, paused: bool) -> Outcome:
    done = "paused" if paused else "resumed"
    if peer is not None:
        changed = run.peers().limit(peer, paused=paused)
        return Outcome({"peer": changed.name, "paused": paused}, [f"transfers with {changed.name} are {done}"])
    from kvsync.files import write_atomic

    marker = run.node().paused_file
    if paused:
        write_atomic(marker, b"")
    else:
        marker.unlink(missing_ok=True)
    return Outcome({"peer": None, "paused": paused}, [f"all transfers are {done}"])
