"""`kvsync registry`: registries that this node tells what it has and asks what others have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvsync.cli._command import Run, add_group
from kvsync.cli._render import Outcome, Table

if TYPE_CHECKING:
    from kvsync.daemon.network_status import RegistryState
    from kvsync.keys import ListedRegistry, RegistryBook

UNASKED: Final = "no daemon runs"


def add_commands(app: typer.Typer) -> None:
    add_group(app, "registry", "Who has what: registries to tell and to ask.", {"add": add, "ls": ls, "rm": rm})


def add(
    run: Run,
    name: Annotated[str, typer.Argument(help="How you call the registry; a peer's name alone means its daemon's.")],
    key: Annotated[
        str | None, typer.Argument(metavar="KEY", help="The key it must prove, as `kvsync-registry` prints it.")
    ] = None,
    address: Annotated[
        list[str] | None,
        typer.Option("--address", metavar="HOST:PORT", help="Where it listens; may be given several times."),
    ] = None,
    readers: Annotated[
        str,
        typer.Option(
            "--readers",
            metavar="WHO",
            help="Who learns there of what this node has: peers (this node's own), members (all), tenant:NAME.",
        ),
    ] = "peers",
) -> Outcome:
    """Use a registry, or change what is known of it.

    It is told what this node has, and to whom that may be shown. Nothing it says is believed.
    """
    from kvsync.keys import ListedRegistry, Peer
    from kvsync_protocol.signing import PublicKey

    if key is None:
        peer = run.peers().get(name)
        found = Peer(peer.name, peer.key, tuple(address or peer.addresses), ())
    else:
        found = Peer(name, PublicKey.parse(key), tuple(address or ()), ())
    registry = ListedRegistry(found, readers)
    _book(run).add(registry)
    return Outcome(_as_json(registry, None), [f"{name} is used as a registry"])


def ls(run: Run) -> Outcome:
    """List registries, and whether the daemon reaches them."""
    states = _states(run)
    listed = _book(run).registries()
    told = [(registry, states.pop(registry.name, None)) for registry in listed]
    data = [_as_json(registry, state) for registry, state in told]
    rows: list[tuple[object, ...]] = [
        (
            each.name,
            each.peer.key,
            " ".join(each.peer.addresses),
            each.readers,
            UNASKED if state is None else state.state,
        )
        for each, state in told
    ]
    own = list(states.values())  # what no list names is the daemon's own
    rows += [(state.name, state.key, "-", "members", state.state) for state in own]
    view = Table(("NAME", "KEY", "ADDRESSES", "READERS", "STATE"), rows)
    return Outcome({"registries": data, "embedded": own[0].as_json() if own else None}, [view])


def rm(run: Run, registry: Annotated[str, typer.Argument(help="Name or key.")]) -> Outcome:
    """Use a registry no longer.

    What it was told ends there with its time to live.
    """
    removed = _book(run).remove(registry)
    return Outcome(_as_json(removed, None), [f"{removed.name} is no longer used"])


def _book(run: Run) -> RegistryBook:
    from kvsync.keys import RegistryBook

    return RegistryBook(run.node())


def _states(run: Run) -> dict[str, RegistryState]:
    from kvsync.daemon import lifecycle
    from kvsync.daemon.messages import Status

    found = lifecycle.status(run.node())
    return {} if found is None else {state.name: state for state in Status.parse(found).registries}


def _as_json(registry: ListedRegistry, state: RegistryState | None) -> dict[str, object]:
    return {
        "name": registry.name,
        "key": str(registry.peer.key),
        "addresses": list(registry.peer.addresses),
        "readers": registry.readers,
        "state": UNASKED if state is None else state.state,
        "code": None if state is None else state.code,
        "due": None if state is None else state.due,
    }
