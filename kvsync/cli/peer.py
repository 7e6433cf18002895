"""`kvsync peer`: the hosts this node exchanges artifacts with. A peer carries bytes and vouches for nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Outcome, Table

if TYPE_CHECKING:
    from kvsync.keys import Peer


def add_commands(app: typer.Typer) -> None:
    add_group(
        app, "peer", "Hosts to exchange artifacts with.", {"add": add, "ls": ls, "rm": rm, "discover": discover}
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


def ls(run: Run) -> Outcome:
    """List known peers."""
    peers = run.peers().peers()
    rows = [(p.name, p.key, _state(p), " ".join(p.names) or "*", " ".join(p.addresses) or "-") for p in peers]
    view = Table(("NAME", "KEY", "ROLES", "SEES", "ADDRESSES"), rows)
    return Outcome({"peers": [_as_json(p) for p in peers]}, [view])


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


def _state(peer: Peer) -> str:
    return (",".join(peer.roles) or "-") if peer.keys else "revoked"


def _as_json(peer: Peer) -> dict[str, object]:
    return {
        "name": peer.name,
        "key": str(peer.key),
        "addresses": list(peer.addresses),
        "roles": list(peer.roles),
        "names": list(peer.names),
        "counting": [str(key) for key in peer.keys],
    }
