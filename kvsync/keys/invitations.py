"""Tickets that this node has given out, in `invitations.json`: what each grants, and whether it was used.

A ticket's secret is not kept, only the public key made from it. An invitation is spent in three writes (claimed,
peer pinned, done): a kill between them leaves a ticket that the same joiner, and nobody else, may use again. Only
this node's clock counts.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from kvsync.config import Home
from kvsync.errors import UsageError
from kvsync.files import exclusive
from kvsync.keys.lists import load_list, save_list
from kvsync.keys.patterns import MAX_PATTERNS, check_patterns
from kvsync.keys.peers import Peer, PeerBook, check_roles
from kvsync.keys.trust import TrustList
from kvsync_protocol import strictjson
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import TrustError
from kvsync_protocol.join import JoinRequest
from kvsync_protocol.limits import MAX_NAME_CHARS, MAX_ROLES
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.ticket import SECRET_BYTES, Ticket

MAX_LIFE_S: Final = 30 * 86_400
REMEMBERED_S: Final = 86_400
"""So long after its expiry a ticket is still known, so that its holder is told why it is refused."""
MAX_INVITATIONS: Final = 100


@dataclass(frozen=True, slots=True)
class Invitation:
    """What the joiner will be called here and may do, under the public half of a ticket's secret."""

    key: PublicKey
    expires: int
    roles: tuple[str, ...] = ("get",)
    names: tuple[str, ...] = ()
    name: str | None = None
    trust_signer: bool = False
    claimed: PublicKey | None = None
    done: bool = False

    def state(self, now: float) -> str:
        if self.claimed is not None:
            return "used"
        return "expired" if now > self.expires else "open"


class Invitations:
    """The file. Safe for several processes."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def list(self) -> list[Invitation]:
        """Those that are still known. Raises StoreError `invitations.damaged`."""
        return load_list(self._home.invitations_file, "invitations", _read)

    def invite(
        self,
        identity: PublicKey,
        addresses: Iterable[str],
        life_s: int,
        *,
        roles: Iterable[str] = ("get",),
        names: Iterable[str] = (),
        name: str | None = None,
        trust_signer: bool = False,
        registry: str | None = None,
        now: float | None = None,
    ) -> Ticket:
        """A ticket that one other host may use once within `life_s` seconds.

        Raises:
            UsageError: `ticket.expires`, `peer.role`, `peer.exists` when the name is taken, `invitations.full`.
            MalformedError: `ticket.address`, `ref.name`.
        """
        seconds = int(time.time() if now is None else now)
        if not 0 < life_s <= MAX_LIFE_S:
            raise UsageError("ticket.expires", f"a ticket is good for up to {MAX_LIFE_S // 86_400} days")
        ticket = Ticket(identity, secrets.token_bytes(SECRET_BYTES), seconds + life_s, tuple(addresses), registry)
        if name is not None and check_name(name) in {peer.name for peer in PeerBook(self._home).peers()}:
            raise UsageError("peer.exists", f"{name!r} is a known peer already", hint="kvsync peer ls")
        made = Invitation(
            ticket.key.public, ticket.expires, check_roles(roles), check_patterns(names), name, trust_signer
        )
        with exclusive(self._home.lock_file):
            kept = [each for each in self.list() if seconds <= each.expires + REMEMBERED_S]
            if len(kept) >= MAX_INVITATIONS:
                raise UsageError(
                    "invitations.full", f"{MAX_INVITATIONS} tickets are out", hint="kvsync invite --withdraw"
                )
            self._save([*kept, made])
        return ticket

    def withdraw(self) -> int:
        """Forget every ticket, used or not; returns how many were open."""
        with exclusive(self._home.lock_file):
            known = self.list()
            self._save([])
        return sum(each.state(time.time()) == "open" for each in known)

    def spend(
        self, envelope: Envelope, joiner: PublicKey, inviter: PublicKey, trust: TrustList, now: float | None = None
    ) -> tuple[JoinRequest, Peer]:
        """Judge a request from the holder of `joiner`, pin it, and spend the ticket. All or nothing is changed.

        Raises:
            TrustError: `ticket.unknown`, `ticket.expired`, `ticket.spent`, `ticket.identity` when the request was
                made for another connection, `peer.revoked`.
            UsageError: `join.self`, `peer.exists`, `peer.address`, `trust.exists`.
            MalformedError: `json.*`, `message.*`.
        """
        seconds = time.time() if now is None else now
        with exclusive(self._home.lock_file):
            known = {each.key: each for each in self.list()}
            try:
                request, key = JoinRequest.open(envelope, known)
            except TrustError as error:
                raise TrustError(
                    "ticket.unknown",
                    "no such ticket was given out here, or it was withdrawn",
                    hint="ask for a new one",
                ) from error
            invitation = known[key]
            self._judge(request, invitation, joiner, inviter, trust, seconds)
            peer = self._peer(request, invitation)
            if invitation.done:
                return request, peer
            signer = request.about.signer
            trusting = invitation.trust_signer and signer not in set(trust.keys())
            book = PeerBook(self._home)
            book.check_free(peer)
            if trusting:
                trust.check_free(peer.name, signer)
            known[key] = replace(invitation, claimed=joiner)
            self._save(known.values())
            book.add_locked(peer)
            if trusting:
                trust.add_locked(peer.name, signer)
            known[key] = replace(known[key], done=True)
            self._save(known.values())
        return request, peer

    def _judge(
        self,
        request: JoinRequest,
        invitation: Invitation,
        joiner: PublicKey,
        inviter: PublicKey,
        trust: TrustList,
        now: float,
    ) -> None:
        if (request.joiner, request.inviter) != (joiner, inviter):
            raise TrustError("ticket.identity", "the request was made for another connection")
        if joiner == inviter:
            raise UsageError(
                "join.self", "the joining host has this node's own identity", hint="a copied home? kvsync init"
            )
        if joiner in trust.standing().revoked:
            raise TrustError("peer.revoked", "the joining host's key is revoked here")
        again = invitation.claimed == joiner and (
            not invitation.done or PeerBook(self._home).by_key(joiner) is not None
        )
        if invitation.claimed is not None and not again:
            raise TrustError("ticket.spent", "the ticket was used already", hint="ask for a new one")
        if now > invitation.expires:
            raise TrustError("ticket.expired", "the ticket has expired", hint="ask for a new one")

    def _peer(self, request: JoinRequest, invitation: Invitation) -> Peer:
        """The joiner as it will be listed; one that is known already keeps its name and what it may do."""
        book = PeerBook(self._home)
        before = book.by_key(request.joiner)
        addresses = request.about.addresses
        if before is None:
            name = invitation.name or free_name(request.about.name, request.joiner, book)
            return Peer(name, request.joiner, addresses, invitation.roles, invitation.names)
        limited = bool(before.names and invitation.names)
        return Peer(
            before.name,
            before.key,
            addresses or before.addresses,
            tuple(dict.fromkeys((*before.roles, *invitation.roles))),
            tuple(dict.fromkeys((*before.names, *invitation.names))) if limited else (),
        )

    def _save(self, invitations: Iterable[Invitation]) -> None:
        entries = [
            {
                "key": str(each.key),
                "expires": each.expires,
                "roles": list(each.roles),
                "names": list(each.names),
                "name": each.name,
                "trust_signer": each.trust_signer,
                "claimed": None if each.claimed is None else str(each.claimed),
                "done": each.done,
            }
            for each in invitations
        ]
        save_list(self._home.invitations_file, "invitations", entries)


def free_name(wanted: str, key: PublicKey, book: PeerBook) -> str:
    """`wanted`, or with a part of the key behind it where another peer is called so."""
    if all(peer.name != wanted for peer in book.peers()):
        return wanted
    return check_name(f"{wanted[: MAX_NAME_CHARS - 9]}-{key.key_id[:8]}")


def _read(entry: strictjson.Fields, version: int) -> Invitation:
    return Invitation(
        PublicKey.parse(entry.take("key")),
        entry.integer("expires", 0, strictjson.MAX_SAFE_INTEGER),
        check_roles(entry.strings("roles", limit=MAX_ROLES, each=64)),
        check_patterns(entry.strings("names", limit=MAX_PATTERNS, each=800)),
        entry.optional("name", lambda name: check_name(entry.string(name, limit=800))),
        entry.boolean("trust_signer"),
        entry.optional("claimed", lambda name: PublicKey.parse(entry.take(name))),
        entry.boolean("done"),
    )
