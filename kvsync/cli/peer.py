"""`kvsync peer`: the hosts this node exchanges artifacts with. A peer carries bytes and vouches for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._rates import parse_rate, rate
from kvsync.cli._render import Outcome, Table

if TYPE_CHECKING:
    from kvsync.keys import Peer


def add_commands(app: typer.Typer) -> None:
    add_group(
        app,
        "peer",
        "Hosts to exchange artifacts with.",
        {"add": add, "ls": ls, "rate": set_rate, "rm": rm, "discover": discover},
    )


def add(
    run: Run,
    name: Annotated[str, typer.Argument(help="How you call the peer.")],
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its peer key, from its `kvsync keys show`.")],
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="HOST:PORT", help="Where it listens; may be given several times."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="ROLE",
            help="What it may do here: get (the default), push, compute, audit; may be repeated.",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--names", metavar="PATTERN", help="Names whose artifacts it may see: team/*; default all."),
    ] = None,
) -> Outcome:
    """Know a peer, or change what is known.

    Adding it again under the same name and key replaces addresses and roles.
    """
    from kvsync.keys import Peer
    from kvsync_protocol.signing import PublicKey

    roles, patterns = tuple(dict.fromkeys(role or ["get"])), tuple(dict.fromkeys(names or ()))
    peer = Peer(name, PublicKey.parse(key), tuple(address or ()), roles, patterns)
    run.peers().add(peer)
    return Outcome(_as_json(peer), [f"{name} is known"])


def ls(
    run: Run,
    blame: Annotated[bool, typer.Option("--blame", help="List wrong chunks that came from peers instead.")] = False,
) -> Outcome:
    """List known peers, or what went wrong with them."""
    peers = run.peers().peers()
    if blame:
        return _blame(run, peers)
    rows = [(p.name, p.key, _state(p), " ".join(p.names) or "*", " ".join(p.addresses) or "-") for p in peers]
    view = Table(("NAME", "KEY", "ROLES", "SEES", "ADDRESSES"), rows)
    return Outcome({"peers": [_as_json(p) for p in peers]}, [view])


def _blame(run: Run, peers: Sequence[Peer]) -> Outcome:
    """Records that this node has signed: what came for which leaf, and from whom."""
    from kvsync.keys import standing
    from kvsync.peer.blame import BlameBook
    from kvsync_protocol.successor import SIGNER

    own = run.keys().signer.public
    found = BlameBook(run.home).records(frozenset({own, *standing(run.home).follows(SIGNER, own)}))
    names = {key: peer.name for peer in peers for key in (peer.key, *peer.keys)}
    data = [
        {
            "peer": str(each.peer),
            "known_as": names.get(each.peer),
            "artifact": str(each.artifact),
            "leaf": each.leaf,
            "code": each.code,
            "found": None if each.found is None else str(each.found),
            "time": each.time,
        }
        for each in found
    ]
    rows = [
        (_time(each.time), names.get(each.peer, each.peer.key_id), each.artifact.short, each.leaf, each.code)
        for each in found
    ]
    notes = [] if rows else ["no peer has sent a wrong chunk"]
    return Outcome({"blame": data}, [Table(("TIME", "PEER", "ARTIFACT", "LEAF", "WHAT"), rows)], notes=notes)


def set_rate(
    run: Run,
    peer: Annotated[str, typer.Argument(help="Name or key.")],
    limit: Annotated[str, typer.Argument(metavar="RATE", help="5MB/s, 512KiB/s, or none.")],
) -> Outcome:
    """Limit how fast chunks go to a peer, and come from it.

    Holds at once, also for transfers under way. The node's own limit is the setting rate_bytes_per_s.
    """
    changed = run.peers().limit(peer, rate=parse_rate(limit))
    return Outcome(_as_json(changed), [f"{changed.name}: {rate(changed.rate)}"])


def rm(run: Run, peer: Annotated[str, typer.Argument(help="Name or key.")]) -> Outcome:
    """Forget a peer; it cannot connect any more."""
    removed = run.peers().remove(peer)
    return Outcome(_as_json(removed), [f"{removed.name} is forgotten"])


def discover(
    run: Run,
    seconds: Annotated[int, typer.Option("--seconds", min=1, max=60, help="How long to listen.")] = 3,
) -> Outcome:
    """Show who announces himself in the local network.

    Only a hint: anybody can announce anything. Compare the key before `kvsync peer add`; a handshake proves it.
    """
    from kvsync.peer.lan import discover as listen

    book, own = run.peers(), run.keys().peer.public
    found = [(each, book.by_key(each.key)) for each in listen(seconds) if each.key != own]
    data = [
        {"key": str(each.key), "addresses": list(each.addresses), "known_as": known.name if known else None}
        for each, known in found
    ]
    rows = [(known.name if known else "-", each.key, " ".join(each.addresses)) for each, known in found]
    return Outcome({"found": data}, [Table(("KNOWN AS", "KEY", "SAYS IT IS AT"), rows)])


def _time(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(seconds)


def _state(peer: Peer) -> str:
    return (",".join(peer.roles) or "-") if peer.keys else "revoked"


def _as_json(peer: Peer) -> dict[str, object]:
    return {
        "name": peer.name,
        "key": str(peer.key),
        "addresses": list(peer.addresses),
        "roles": list(peer.roles),
        "names": list(peer.names),
        "rate": peer.rate,
        "paused": peer.paused,
        "counting": [str(key) for key in peer.keys],
    }
