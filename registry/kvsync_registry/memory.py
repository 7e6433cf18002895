"""`MemoryRegistryStore`: the rows in dictionaries, for tests and for small networks that may forget.

Ids are given in the order in which the database stores give them, so that all answer alike.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.limits import MAX_PROVIDERS
from kvsync_protocol.registry_messages import MAX_MATCHES, Match, Matches, Provider
from kvsync_protocol.signing import PublicKey
from kvsync_registry.store import (
    SCAN_ROWS,
    AttestationRecord,
    Change,
    Claim,
    RefOutcome,
    RefRecord,
    Standing,
    split_places,
)


@dataclass(slots=True)
class _Offer:
    claim: int
    generation: int
    expires: int


@dataclass(slots=True)
class _Provider:
    key: PublicKey
    number: int
    epoch: int = 0
    sequence: int = 0
    generation: int = 0
    contact: tuple[tuple[str, ...], int] = ((), 0)
    offers: dict[ArtifactId, _Offer] = field(default_factory=dict)


class MemoryRegistryStore:
    """See RegistryStore."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._providers: dict[PublicKey, _Provider] = {}
        self._claims: dict[int, Claim] = {}
        self._numbers: dict[bytes, int] = {}
        self._filed: dict[bytes, dict[int, None]] = {}
        self._offered: dict[int, dict[int, tuple[_Provider, _Offer]]] = {}
        self._last = 0
        self._refs: dict[tuple[str, PublicKey], RefRecord] = {}
        self._attestations: dict[tuple[ArtifactId, PublicKey, Digest], AttestationRecord] = {}

    def change(
        self,
        provider: PublicKey,
        artifacts: Collection[ArtifactId],
        now: int,
        rule: Callable[[Standing], Change | None],
    ) -> None:
        with self._lock:
            known = self._providers.get(provider) or _Provider(provider, len(self._providers) + 1)
            live = {
                artifact: self._claims[offer.claim].entries
                for artifact, offer in known.offers.items()
                if _lives(known, offer, now)
            }
            asked = {artifact: live[artifact] for artifact in artifacts if artifact in live}
            found = rule(Standing(known.epoch, known.sequence, asked, len(live), sum(live.values())))
            if found is None:
                return
            self._providers[provider] = known
            known.epoch, known.sequence = found.epoch, found.sequence
            known.generation += found.renew
            if found.contact is not None:
                known.contact = found.contact
            for artifact in found.drop:
                self._forget(known, artifact)
            for digest, artifact, claim, expires in found.ordered():
                self._forget(known, artifact)
                offer = _Offer(self._number(digest, claim), known.generation, expires)
                known.offers[artifact] = offer
                self._offered.setdefault(offer.claim, {})[known.number] = (known, offer)

    def _number(self, digest: bytes, claim: Claim) -> int:
        """The claim's id, a new one when it is new."""
        number = self._numbers.get(digest)
        if number is None:
            number = self._last = self._last + 1
            self._numbers[digest] = number
            self._claims[number] = claim
            for place in split_places(claim.places):
                self._filed.setdefault(place, {})[number] = None
        return number

    def _forget(self, provider: _Provider, artifact: ArtifactId) -> None:
        offer = provider.offers.pop(artifact, None)
        if offer is not None:
            del self._offered[offer.claim][provider.number]

    def lookup(self, places: Sequence[bytes], now: int) -> Matches:
        with self._lock:
            columns = [list(split_places(column)) for column in places]
            low, high = 0, len(columns[0])
            while low < high:
                middle = (low + high + 1) // 2
                asked = [column[middle - 1] for column in columns]
                if self._found(asked, now) or any(len(self._filed.get(one, ())) >= SCAN_ROWS for one in asked):
                    low = middle
                else:
                    high = middle - 1
            if not low:
                return Matches(0, ())
            numbers = self._found([column[low - 1] for column in columns], now)
            found = tuple(self._match(number, now) for number in numbers[:MAX_MATCHES])
            return Matches(low if found else 0, found)

    def _found(self, places: Sequence[bytes], now: int) -> list[int]:
        """Live claims at any of `places`, in order."""
        near = {number for place in places for number in list(self._filed.get(place, ()))[:SCAN_ROWS]}
        return sorted(number for number in near if any(self._serving(number, now)))

    def _serving(self, number: int, now: int) -> Iterator[_Provider]:
        offered = self._offered.get(number, {})
        return (provider for _, (provider, offer) in sorted(offered.items()) if _lives(provider, offer, now))

    def _match(self, number: int, now: int) -> Match:
        claim = self._claims[number]
        serving = list(self._serving(number, now))[:MAX_PROVIDERS]
        providers = tuple(Provider(provider.key, _addresses(provider, now)) for provider in serving)
        return Match(claim.artifact, claim.compatibility, claim.numerics, claim.blocks, claim.size, providers)

    def put_ref(self, record: RefRecord, most: int) -> RefOutcome:
        with self._lock:
            where = (record.name, record.signer)
            before = self._refs.get(where)
            if before is None and sum(ref.member == record.member for ref in self._refs.values()) >= most:
                return RefOutcome.FULL
            again = before is not None and (before.sequence, before.artifact) == (record.sequence, record.artifact)
            if before is not None and before.sequence >= record.sequence and not again:
                return RefOutcome.ROLLBACK
            self._refs[where] = record
            return RefOutcome.KEPT

    def refs(self, places: Sequence[bytes], name: str, after: str, now: int, limit: int) -> list[tuple[str, bytes]]:
        with self._lock:
            rows = [
                (ref.name, ref.signer.raw, ref.envelope)
                for ref in self._refs.values()
                if (ref.name == name if name else ref.name > after)
                and (ref.expires is None or ref.expires >= now)
                and not set(places).isdisjoint(ref.places)
            ]
        return [(name, envelope) for name, _, envelope in sorted(rows)[:limit]]

    def put_attestation(self, record: AttestationRecord, now: int, most: int, most_each: int) -> bool:
        with self._lock:
            where = (record.artifact, record.signer, record.digest)
            others = [
                one
                for key, one in self._attestations.items()
                if one.artifact == record.artifact and one.expires > now and key != where
            ]
            if len(others) >= most or sum(one.member == record.member for one in others) >= most_each:
                return False
            self._attestations[where] = record
            return True

    def attestations(self, artifact: ArtifactId, now: int, limit: int) -> list[bytes]:
        with self._lock:
            found = [one for one in self._attestations.values() if one.artifact == artifact and one.expires > now]
        found.sort(key=lambda one: (one.signer, one.digest))
        return [one.envelope for one in found[:limit]]

    def contact(self, key: PublicKey, now: int) -> tuple[str, ...]:
        with self._lock:
            found = self._providers.get(key)
            return () if found is None else _addresses(found, now)

    def sweep(self, now: int) -> int:
        with self._lock:
            dead = [
                (provider, artifact)
                for provider in self._providers.values()
                for artifact, offer in provider.offers.items()
                if not _lives(provider, offer, now)
            ]
            for provider, artifact in dead:
                self._forget(provider, artifact)
            for number in [number for number in self._claims if not self._offered.get(number)]:
                self._offered.pop(number, None)
                claim = self._claims.pop(number)
                del self._numbers[claim.digest]
                for place in split_places(claim.places):
                    filed = self._filed[place]
                    filed.pop(number, None)
                    if not filed:
                        del self._filed[place]
            for where in [key for key, one in self._attestations.items() if one.expires <= now]:
                del self._attestations[where]
            return len(dead)

    def close(self) -> None:
        """Nothing is held."""


def _lives(provider: _Provider, offer: _Offer, now: int) -> bool:
    return offer.generation == provider.generation and offer.expires > now


def _addresses(provider: _Provider, now: int) -> tuple[str, ...]:
    addresses, expires = provider.contact
    return addresses if expires > now else ()
