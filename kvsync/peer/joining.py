"""Joining another node with its ticket: judge what can be judged here, show the ticket, pin the other side.

Everything that could be refused on this host is refused before the ticket is spent. What is learnt is written
at the end; should that fail, the same node may show the same ticket again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvsync.config import Settings
from kvsync.errors import UsageError
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.keys.invitations import free_name
from kvsync.keys.peers import MAX_ADDRESSES, check_roles
from kvsync.peer.introduction import introduce
from kvsync.peer.join_client import show_ticket
from kvsync.store import Store
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import TrustError
from kvsync_protocol.fingerprint import CANARY_FIELD, Fingerprints
from kvsync_protocol.join import JoinAnswer
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Comparison:
    """One model that both sides have computed with: do they compute the same bytes, and if not, what differs."""

    weights: str
    compatibility: Digest
    differing: tuple[str, ...]
    canary_equal: bool

    @property
    def equal(self) -> bool:
        return not self.differing


@dataclass(frozen=True, slots=True)
class JoinReport:
    """`peer` is the inviter as it is listed now; `granted` what this node may do there."""

    peer: Peer
    granted: tuple[str, ...]
    signer: PublicKey
    signer_trusted: bool
    registry: str | None
    comparisons: tuple[Comparison, ...]


async def join(
    ticket: Ticket,
    keys: NodeKeys,
    store: Store,
    settings: Settings,
    *,
    name: str | None = None,
    roles: Iterable[str] = ("get",),
    trust_signer: bool = False,
    own_name: str | None = None,
    port: int | None = None,
) -> JoinReport:
    """Spend `ticket` and pin the node that gave it out, under `name` and with `roles` here.

    Raises:
        UsageError: `join.self`, `peer.exists`, `peer.role`, `trust.exists`, before anything is sent.
        TrustError: `peer.revoked`, before anything is sent; otherwise as `show_ticket`.
    """
    book, trust = PeerBook(keys.home), TrustList(keys.home, keys.signer.public)
    before = _judge(ticket, keys, book, trust, name, trust_signer=trust_signer)
    wanted = check_roles(roles)
    about = introduce(store, keys, settings, name=own_name, port=port)
    answer = await show_ticket(ticket, keys, about)
    peer = _peer(ticket, answer, before, book, name, wanted)
    book.add(peer)
    signer = answer.about.signer
    trusted = signer in set(trust.keys())
    if trust_signer and not trusted:
        trust.add(peer.name, signer)
    return JoinReport(
        peer,
        answer.roles,
        signer,
        trusted or trust_signer,
        ticket.registry,
        tuple(compare(about.fingerprints, answer.about.fingerprints)),
    )


def _judge(
    ticket: Ticket, keys: NodeKeys, book: PeerBook, trust: TrustList, name: str | None, *, trust_signer: bool
) -> Peer | None:
    """The inviter as it is listed already, if it is."""
    if ticket.identity == keys.peer.public:
        raise UsageError("join.self", "this node gave out the ticket itself", hint="use it on the other host")
    if ticket.identity in trust.standing().revoked:
        raise TrustError("peer.revoked", "the key of the node that gave out the ticket is revoked here")
    before = book.by_key(ticket.identity)
    if name is not None:
        if before is not None and before.name != name:
            raise UsageError("peer.exists", f"that node is known here as {before.name!r}", hint="kvsync peer ls")
        book.check_free(Peer(name, ticket.identity if before is None else before.key, ticket.addresses))
        if trust_signer and any(signer.name == name for signer in trust.signers()):
            raise UsageError("trust.exists", f"{name!r} is a trusted signer already", hint="kvsync trust ls")
    return before


def _peer(
    ticket: Ticket, answer: JoinAnswer, before: Peer | None, book: PeerBook, name: str | None, roles: tuple[str, ...]
) -> Peer:
    if before is None:
        called = name or free_name(answer.about.name, ticket.identity, book)
        return Peer(called, ticket.identity, ticket.addresses, roles)
    addresses = tuple(dict.fromkeys((*ticket.addresses, *before.addresses)))[:MAX_ADDRESSES]
    return Peer(before.name, before.key, addresses, tuple(dict.fromkeys((*before.roles, *roles))), before.names)


def compare(ours: Sequence[Fingerprints], theirs: Sequence[Fingerprints]) -> Iterator[Comparison]:
    """The models that both sides name, the nearest of their computations against the nearest of ours."""
    for model in dict.fromkeys(pair.compatibility.digest for pair in theirs):
        found = [
            (pair, other)
            for pair in ours
            for other in theirs
            if pair.compatibility.digest == model == other.compatibility.digest
        ]
        if not found:
            continue
        pair, other = min(found, key=lambda both: len(both[0].numerics.differences(both[1].numerics)))
        canaries = {each.numerics.fields.get(CANARY_FIELD) for each in (pair, other)}
        yield Comparison(
            pair.compatibility.fields.get("weights", ""),
            model,
            tuple(difference.field for difference in pair.numerics.differences(other.numerics)),
            len(canaries) == 1 and None not in canaries,
        )
