"""What a provider's statements change, given where it stands. Pure: no clock, no rows, no signatures.

Statements are taken in order. One that is not later than what is known changes nothing and is `registry.stale`:
heard twice, replayed, or of a life before the last restart. A higher epoch ends all offers of the one before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsync_protocol.announcement import Announcement, Contact, Statement, Withdrawal
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.reader import artifact_place, block_places
from kvsync_protocol.registry_messages import OK
from kvsync_registry.config import RegistryLimits
from kvsync_registry.store import Change, Claim, Standing

STALE = "registry.stale"
FULL = "registry.full"


def claim_of(announcement: Announcement) -> Claim:
    blocks = tuple(dict.fromkeys(announcement.keys))
    places = b"".join(
        artifact_place(reader, announcement.artifact) + block_places(reader, blocks)
        for reader in announcement.readers
    )
    return Claim(
        announcement.artifact,
        announcement.compatibility,
        announcement.numerics,
        len(announcement.keys),
        announcement.size,
        places,
    )


@dataclass(slots=True)
class Plan:
    """Statements heard one after the other; `change()` is what they come to."""

    standing: Standing
    limits: RegistryLimits
    now: int
    epoch: int = 0
    sequence: int = 0
    offers: int = 0
    entries: int = 0
    renew: bool = False
    live: dict[ArtifactId, int] = field(default_factory=dict)
    put: dict[ArtifactId, tuple[Claim, int]] = field(default_factory=dict)
    drop: set[ArtifactId] = field(default_factory=set)
    contact: tuple[tuple[str, ...], int] | None = None

    def __post_init__(self) -> None:
        self.epoch, self.sequence = self.standing.epoch, self.standing.sequence
        self.offers, self.entries = self.standing.offers, self.standing.entries
        self.live = dict(self.standing.live)

    def hear(self, statement: Statement) -> str:
        """`ok`, or the code of the refusal."""
        at = statement.at
        if (at.epoch, at.sequence) <= (self.epoch, self.sequence):
            return STALE
        if at.epoch > self.epoch:
            self._end_all()
        self.epoch, self.sequence = at.epoch, at.sequence
        match statement:
            case Announcement():
                return self._announce(statement)
            case Withdrawal(artifact=None):
                self._end_all()
            case Withdrawal(artifact=artifact) if artifact is not None:
                self._end(artifact)
            case Contact():
                self.contact = (statement.addresses, self._until(statement.ttl_s))
        return OK

    def _until(self, ttl_s: int) -> int:
        return self.now + min(max(ttl_s, self.limits.least_ttl_s), self.limits.most_ttl_s)

    def _end_all(self) -> None:
        self.renew = True
        self.offers = self.entries = 0
        self.live.clear()
        self.put.clear()
        self.drop.clear()

    def _end(self, artifact: ArtifactId) -> None:
        self.put.pop(artifact, None)
        if artifact in self.live:
            self.offers -= 1
            self.entries -= self.live.pop(artifact)
            self.drop.add(artifact)

    def _announce(self, announcement: Announcement) -> str:
        before = self.live.get(announcement.artifact)
        offers = self.offers + (before is None)
        claim = claim_of(announcement)
        entries = self.entries + claim.entries - (before or 0)
        if offers > self.limits.offers or entries > self.limits.entries:
            return FULL
        self.offers, self.entries = offers, entries
        self.live[announcement.artifact] = claim.entries
        self.drop.discard(announcement.artifact)
        self.put[announcement.artifact] = (claim, self._until(announcement.ttl_s))
        return OK

    def change(self) -> Change | None:
        """None when nothing was heard that counts."""
        if (self.epoch, self.sequence) == (self.standing.epoch, self.standing.sequence):
            return None
        return Change(self.epoch, self.sequence, self.renew, frozenset(self.drop), self.put, self.contact)


def plan(
    standing: Standing, statements: Sequence[Statement | str], limits: RegistryLimits, now: int
) -> tuple[Change | None, int, tuple[str, ...]]:
    """The change, the epoch after it, and what became of each statement; a refused one stands as its code."""
    heard = Plan(standing, limits, now)
    outcomes = tuple(one if isinstance(one, str) else heard.hear(one) for one in statements)
    return heard.change(), heard.epoch, outcomes
