"""What this node says of itself when somebody joins: a name, its signer, its addresses, what it has computed."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from itertools import islice
from typing import Final

from kvsync.config import Settings
from kvsync.keys import NodeKeys, join_address
from kvsync.keys.peers import MAX_ADDRESSES
from kvsync.peer.interfaces import local_addresses
from kvsync.store import Store
from kvsync_protocol import strictjson
from kvsync_protocol.errors import CodedError, MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.join import MAX_JOIN_BYTES, MAX_PAIRS, Introduction
from kvsync_protocol.ref import check_name

_LOOKED_AT: Final = 64
"""Of its own artifacts, the newest: their fingerprints are those of what the node computes nowadays."""


def introduce(
    store: Store, keys: NodeKeys, settings: Settings, *, name: str | None = None, port: int | None = None
) -> Introduction:
    """`port` is where the daemon listens, when the settings leave it open."""
    number = settings.listen_port or port
    addresses = listening_addresses(settings.listen_host, number) if number else ()
    about = Introduction(name or host_name(), keys.signer.public, addresses, ())
    pairs: list[Fingerprints] = []
    for pair in _own_fingerprints(store, keys):
        more = Introduction(about.name, about.signer, addresses, (*pairs, pair))
        if len(pairs) == MAX_PAIRS or len(strictjson.dumps(more.as_json())) > MAX_JOIN_BYTES // 2:
            break
        pairs.append(pair)
        about = more
    return about


def _own_fingerprints(store: Store, keys: NodeKeys) -> Iterable[Fingerprints]:
    """Distinct pairs of artifacts that this node has signed, the most recent first."""
    found: dict[Fingerprints, None] = {}
    for artifact in islice(store.kept(), _LOOKED_AT):
        try:
            stored = store.artifact(artifact)
        except CodedError:
            continue  # removed meanwhile, or damaged: fsck says so
        if stored.envelope.signers([keys.signer.public]):
            found[stored.manifest.fingerprints] = None
    return found


def listening_addresses(host: str, port: int) -> tuple[str, ...]:
    """Where others reach a listener: its own address, or for a wildcard those of every interface."""
    if host not in ("0.0.0.0", "::"):  # noqa: S104 (compared, not bound)
        return (join_address(host, port),)
    found = local_addresses(ipv6=host == "::")
    return tuple(join_address(each, port) for each in found)[:MAX_ADDRESSES]


def host_name() -> str:
    """This host's name as others may list it."""
    text = re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().partition(".")[0].lower()).strip("-")
    try:
        return check_name(text[:64])
    except MalformedError:
        return "node"
