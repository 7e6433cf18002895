"""A pull as its parameters describe it: from whom, under which rules, and with which name at the end."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from kvsync.config import Settings
from kvsync.daemon.transfer_params import PullParams
from kvsync.errors import NotFoundError
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.keys.peers import MAX_ADDRESSES
from kvsync.progress import Progress
from kvsync.store import Store
from kvsync.sync import pull
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import IntegrityError


async def pull_here(
    store: Store,
    trust: TrustList,
    book: PeerBook,
    keys: NodeKeys,
    settings: Settings,
    params: PullParams,
    progress: Progress,
) -> dict[str, object]:
    """The report. A name that comes along is judged before anything moves, and kept when everything is here.

    Raises:
        TrustError: `trust.*` for such a name; IntegrityError: `integrity.artifact` when it is of something else.
        NotFoundError: `peer.unknown` when none of the peers is known any more; and as `pull`.
    """
    if params.ref is not None:
        await asyncio.to_thread(_judge_ref, store, trust, params.ref, params.wanted)
    pulled = await pull(
        store,
        trust,
        await asyncio.to_thread(_sources, book, params),
        params.wanted,
        keys=keys,
        settings=params.policy.tightened(settings),
        fingerprints=params.fingerprints,
        progress=progress,
        position=params.tokens,
        blocks=params.blocks,
    )
    name = pulled.name
    if params.ref is not None:
        name = await asyncio.to_thread(_keep_ref, store, trust, params.ref)
    return pulled.as_dict() | {"name": name}


def _sources(book: PeerBook, params: PullParams) -> list[Peer]:
    """The peers as they are known now, each with the addresses that were heard of after its own."""
    found: list[Peer] = []
    for name in (params.peer, *params.also):
        try:
            peer = book.get(name)
        except NotFoundError:
            if not params.also:
                raise
            continue  # removed since, and there are others
        told = (address for who, address in params.hints if who == name)
        found.append(replace(peer, addresses=tuple(dict.fromkeys((*peer.addresses, *told)))[:MAX_ADDRESSES]))
    if not found:
        raise NotFoundError("peer.unknown", "none of the peers is known any more", hint="kvsync peer ls")
    return found


def _judge_ref(store: Store, trust: TrustList, envelope: Envelope, wanted: str) -> None:
    ref, signers = trust.judge_ref(envelope)
    ref.check_fresh(int(time.time()))
    store.check_ref(ref, signers, trust.owners(ref.name, signers))
    if str(ref.artifact) != wanted:
        raise IntegrityError("integrity.artifact", "the name stands for another artifact than the one asked for")


def _keep_ref(store: Store, trust: TrustList, envelope: Envelope) -> str:
    ref, signers = trust.judge_ref(envelope)
    store.set_ref(ref, envelope, *signers, owners=trust.owners(ref.name, signers))
    return ref.name
