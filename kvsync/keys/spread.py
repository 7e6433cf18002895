"""What to keep of another node's statements about keys. Nothing is believed because of who brought it.

A successor is kept only where its old key counts here; a revocation list only from an authority of this node, or
where it revokes the very key that signed it and that key is known here. Sequence numbers only rise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvsync.config import Home
from kvsync.errors import UsageError
from kvsync.keys.peers import PeerBook
from kvsync.keys.signers import Signer
from kvsync.keys.standing import Standing, authorities, standing_of
from kvsync.keys.statements import Held, Statements
from kvsync.keys.trust import TrustList
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import ProtocolError, TrustError
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.statements import KeyStatements
from kvsync_protocol.successor import PEER, SIGNER, Successor

MAX_CHAIN: Final = 16
"""Keys that follow each other, so that one key's owner cannot fill the file."""
MAX_FROM_OTHERS: Final = 64
"""Keys in the list of somebody who is no authority here: only his own counts."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Taken:
    """What came of it: statements kept, and the codes of those that were refused."""

    successors: list[Successor] = field(default_factory=list)
    revocations: list[RevocationList] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


class KeySpread:
    """One node's side of the exchange. `trust` names the node's own signer."""

    def __init__(self, home: Home, trust: TrustList) -> None:
        self._home = home
        self._trust = trust
        self._statements = Statements(home)

    def message(self) -> KeyStatements:
        return self._statements.held().message

    def state(self) -> tuple[int, ...]:
        """Changes with every statement that is taken."""
        try:
            status = self._home.statements_file.stat()
        except OSError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def revoked(self) -> frozenset[PublicKey]:
        return self._trust.standing().revoked

    def take(self, message: KeyStatements, now: float | None = None) -> Taken:
        """Keep what counts here. One bad statement does not spoil the others.

        Raises:
            StoreError: `statements.damaged`, `trust.damaged`, `peers.damaged`, `store.full`.
        """
        seconds = int(time.time() if now is None else now)
        taken = Taken()

        def change(held: Held) -> Held:
            for envelope in message.revocations:
                held = self._tried(self._revocation, held, envelope, seconds, taken)
            for envelope in message.successors:
                held = self._tried(self._successor, held, envelope, seconds, taken)
            return held

        try:
            if message.digest != self.message().digest:
                self._statements.change(change)
        except UsageError as error:  # full; what is held stays, and work goes on
            log.error("statements about keys were not kept: %s", error)
            return Taken([], [], [*taken.refused, error.code])
        for found in taken.revocations:
            log.info("revocation list %d of %s taken", found.sequence, found.authority.key_id)
        for step in taken.successors:
            log.info("%s key %s is followed by %s", step.kind, step.old.key_id, step.new.key_id)
        return taken

    def _tried(self, take: Take, held: Held, envelope: Envelope, now: int, taken: Taken) -> Held:
        try:
            return take(held, envelope, now, taken)
        except ProtocolError as error:
            log.info("a statement about keys was refused: %s", error)
            taken.refused.append(error.code)
            return held

    def _revocation(self, held: Held, envelope: Envelope, seconds: int, taken: Taken) -> Held:
        found = RevocationList.open(envelope)
        last = held.list_of(found.authority)
        if last is not None and found.sequence <= last.sequence:
            if found.sequence < last.sequence:
                raise TrustError("trust.rollback", "an older revocation list than the one held here")
            return held
        if last is not None and found.authority in last.keys:
            raise TrustError("trust.revoked", "a key that revoked itself says no more")
        signers = self._trust.signers()
        now = standing_of(held, signers, seconds)
        if found.authority in now.revoked:
            raise TrustError("trust.revoked", "a revocation list of a key that is revoked itself")
        if found.authority not in self._authorities(now, signers):
            known = self._known(now, SIGNER) | self._known(now, PEER)
            if found.authority not in found.keys or found.authority not in known:
                return held
            once = found.authority in authorities(held, signers, now)  # what is kept of it would count for all
            if len(found.keys) > (1 if once else MAX_FROM_OTHERS):
                raise TrustError("trust.authority", "others' keys in the list of a key that is no authority here")
        taken.revocations.append(found)
        return held.with_revocations(found, envelope)

    def _successor(self, held: Held, envelope: Envelope, seconds: int, taken: Taken) -> Held:
        found = Successor.open(envelope)
        now = standing_of(held, self._trust.signers(), seconds)
        before = now.successors.get((found.kind, found.old))
        if before == found or found.old not in self._known(now, found.kind):
            return held
        if before is not None and before.new != found.new:
            raise TrustError("trust.successor", "another key follows it already")
        if before is not None and found.sequence <= before.sequence:
            raise TrustError("trust.rollback", "an older statement than the one held here")
        if found.old in now.revoked:
            raise TrustError("trust.revoked", "a revoked key names no successor")
        if before is None and seconds > found.until:
            raise TrustError("trust.expired", "the overlap of both keys is over")
        if before is None and len(now.follows(found.kind, found.old)) > MAX_CHAIN:
            raise TrustError("trust.successor", "too many keys in a row")
        taken.successors.append(found)
        return held.with_successor(found, envelope)

    def _authorities(self, now: Standing, signers: Iterable[Signer]) -> frozenset[PublicKey]:
        """Who may revoke for this node now: no key whose time is over."""
        own = self._trust.own
        listed = (key for s in signers if s.authority for key in now.current(SIGNER, s.key))
        return frozenset({*now.current(SIGNER, own), *now.before(SIGNER, own), *listed})

    def _known(self, now: Standing, kind: str) -> frozenset[PublicKey]:
        """Keys of this kind that stand for somebody listed here, revoked ones included."""
        if kind == SIGNER:
            roots = [self._trust.own, *(signer.key for signer in self._trust.signers())]
        else:
            roots = [peer.key for peer in PeerBook(self._home).peers()]
        return frozenset(key for root in roots for key in now.chain(kind, root))


Take = Callable[[Held, Envelope, int, Taken], Held]
