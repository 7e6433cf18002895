"""`kvsync invite` and `kvsync join`: two nodes know each other after one line on each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvsync.cli._command import Run, command
from kvsync.cli._render import Facts, Outcome
from kvsync.errors import UsageError

if TYPE_CHECKING:
    from kvsync.keys import Peer
    from kvsync.peer.joining import Comparison

_ALIASES: Final = {"getter": "get", "publisher": "push"}
_LOOPBACK: Final = ("127.0.0.1", "::1", "localhost")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION: Final = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)


def add_commands(app: typer.Typer) -> None:
    command(app, "invite")(invite)
    command(app, "join")(join)


RoleOption = Annotated[
    list[str] | None,
    typer.Option(
        "--role",
        metavar="ROLE",
        help="What the other side may do here: get (the default), push, compute, audit; may be repeated.",
    ),
]


def invite(
    run: Run,
    role: RoleOption = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="TIME", help="How long the ticket is good: 30m, 1h, 2d.")
    ] = "1h",
    name: Annotated[str | None, typer.Option("--name", help="How you call the other side.")] = None,
    names: Annotated[
        list[str] | None,
        typer.Option("--names", metavar="PATTERN", help="Names whose artifacts it may see: team/*; default all."),
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="HOST:PORT", help="Where this node is reached; default where it listens."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="HOST:PORT",
            help="A registry to name in the ticket; this node's own is used at once.",
        ),
    ] = None,
    trust_signer: Annotated[
        bool, typer.Option("--trust-signer", help="Also trust what the other side signs.")
    ] = False,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Make no ticket; take back all that are open.")
    ] = False,
) -> Outcome:
    """Print a ticket with which one other host may join.

    It works once and is a secret until then. `kvsync join TICKET` over there does the rest; this node's daemon must
    be running.
    """
    from kvsync.keys import split_address
    from kvsync.keys.invitations import Invitations

    invitations = Invitations(run.node())
    if withdraw:
        count = invitations.withdraw()
        return Outcome({"withdrawn": count}, [f"{count} open tickets are withdrawn"])
    keys = run.keys()
    ticket = invitations.invite(
        keys.peer.public,
        address or _addresses(run),
        _seconds(expires),
        roles=_roles(role),
        names=names or (),
        name=name,
        trust_signer=trust_signer,
        registry=registry,
    )
    data = {
        "ticket": str(ticket),
        "expires": ticket.expires,
        "addresses": list(ticket.addresses),
        "roles": list(_roles(role)),
    }
    notes = [f"on the other host, within {expires}: kvsync join TICKET"]
    if all(split_address(each)[0] in _LOOPBACK for each in ticket.addresses):
        notes.append("this node listens for its own host only; set listen_host, or give --address")
    return Outcome(data, [str(ticket)], notes=notes)


def join(
    run: Run,
    ticket: Annotated[str, typer.Argument(metavar="TICKET", help="From `kvsync invite` on the other host.")],
    name: Annotated[str | None, typer.Option("--name", help="How you call the other side.")] = None,
    role: RoleOption = None,
    trust_signer: Annotated[
        bool, typer.Option("--trust-signer", help="Also trust what the other side signs.")
    ] = False,
) -> Outcome:
    """Join the node that gave out a ticket.

    Both sides then know each other's peer key. The other side's signer is shown, and trusted only on demand.
    """
    import asyncio

    from kvsync.peer.joining import join as join_node
    from kvsync_protocol.ticket import Ticket

    found = Ticket.parse(ticket.strip())
    keys, settings = run.keys(), run.settings()
    with run.store() as store:
        report = asyncio.run(
            join_node(
                found,
                keys,
                store,
                settings,
                name=name,
                roles=_roles(role),
                trust_signer=trust_signer,
                port=_port(run),
            )
        )
    peer = report.peer
    listed = _use_registry(run, peer, report.registry)
    data: dict[str, object] = {
        "name": peer.name,
        "key": str(peer.key),
        "addresses": list(peer.addresses),
        "roles": list(peer.roles),
        "granted": list(report.granted),
        "signer": str(report.signer),
        "signer_trusted": report.signer_trusted,
        "registry": report.registry,
        "registry_used": listed,
        "models": [_compared(each) for each in report.comparisons],
    }
    facts = [
        ("peer", peer.name),
        ("key", peer.key),
        ("may here", ", ".join(peer.roles)),
        ("may there", ", ".join(report.granted) or "nothing"),
        ("its signer", f"{report.signer}{'' if report.signer_trusted else ', not trusted'}"),
        *((("registry", report.registry),) if report.registry else ()),
        *(("model", _sentence(each)) for each in report.comparisons),
    ]
    notes = [] if report.signer_trusted else [f"to use what it signed: kvsync trust add {peer.name} {report.signer}"]
    if report.registry and not listed:
        notes.append(
            f"to use the registry, ask for its key: kvsync registry add NAME KEY --address {report.registry}"
        )
    return Outcome(data, [Facts(facts)], notes=notes)


def _use_registry(run: Run, peer: Peer, address: str | None) -> bool:
    """Use the registry that a ticket names, if it is the inviter's own: of another no key is known."""
    from dataclasses import replace

    from kvsync.keys import ListedRegistry, RegistryBook

    if address is None or address not in peer.addresses:
        return False
    book = RegistryBook(run.node())
    listed = {each.name: each.peer.key for each in book.registries()}
    if peer.key in listed.values():
        return True
    if peer.name in listed:
        return False
    book.add(ListedRegistry(replace(peer, addresses=(address,), roles=(), names=())))
    return True


def _roles(words: list[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_ALIASES.get(word, word) for word in words or ["get"]))


def _seconds(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise UsageError("ticket.expires", f"{text!r} is no length of time", hint="for example 30m, 1h or 2d")
    return int(found.group(1)) * _UNITS[found.group(2)]


def _port(run: Run) -> int | None:
    """Where this node's daemon listens, if one runs."""
    from kvsync.daemon.client import DaemonClient
    from kvsync.keys import split_address

    client = DaemonClient(run.node())
    return split_address(str(client.status()["address"]))[1] if client.running() else None


def _addresses(run: Run) -> tuple[str, ...]:
    """Where others reach this node. Raises UsageError `invite.no_address`."""
    from kvsync.peer.introduction import listening_addresses

    settings = run.settings()
    port = _port(run) or settings.listen_port
    if not port:
        raise UsageError(
            "invite.no_address",
            "no daemon runs here, and the settings name no port",
            hint="kvsync daemon start, or give --address",
        )
    return listening_addresses(settings.listen_host, port)


def _compared(found: Comparison) -> dict[str, object]:
    return {
        "weights": found.weights,
        "compatibility": str(found.compatibility),
        "equal": found.equal,
        "canary_equal": found.canary_equal,
        "differing": list(found.differing),
    }


def _sentence(found: Comparison) -> str:
    model = found.weights.removeprefix("sha256:")[:12] or found.compatibility.short
    if found.equal:
        return f"{model}: both sides compute the same bytes"
    what = ", ".join(found.differing)
    if found.canary_equal:
        return f'{model}: equal canary, so accept = "canary" would do; {what} differ'
    return f"{model}: each side computes bytes of its own; {what} differ"
