"""`RegistryStore`: what a registry keeps, whatever keeps it. Values in, values out; no rules and no clock.

    place ──► claim ◄── offer ──► provider
              what       until    key, epoch,
              exactly    when     contact

A claim is one exact description of an artifact, shared by all providers who describe it alike. An offer says
that a provider serves it. Claims are found by places: hashes of a reader and a key, one for each reader and
block and one for the artifact itself. So a lookup as one reader touches no row that another may see, and what is
absent looks like what is hidden. An offer counts while it has not expired and is of its provider's present
generation; `Change.renew` ends all earlier ones in one step.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from kvsync_protocol.digest import ArtifactId, Digest, hash_record
from kvsync_protocol.reader import PLACE_BYTES
from kvsync_protocol.registry_messages import Matches
from kvsync_protocol.signing import PublicKey

MAX_READERS_ASKED: Final = 3
SCAN_ROWS: Final = 512
"""Claims of one place that a lookup looks at for a live one: dead ones wait there for the next sweep."""


@dataclass(frozen=True, slots=True)
class Claim:
    """`size` is in bytes; `places` are all places of the claim, 16 bytes each."""

    artifact: ArtifactId
    compatibility: Digest
    numerics: Digest
    blocks: int
    size: int
    places: bytes

    @property
    def entries(self) -> int:
        """Index rows that it takes."""
        return len(self.places) // PLACE_BYTES

    @property
    def digest(self) -> bytes:
        """Equal for equal claims."""
        numbers = self.blocks.to_bytes(8, "big") + self.size.to_bytes(8, "big")
        items = [self.artifact.raw, self.compatibility.raw, self.numerics.raw, numbers, self.places]
        return hash_record("kvsync/registry/claim/1", items).raw


def split_places(places: bytes) -> Iterator[bytes]:
    """Each of some joined places."""
    return (places[at : at + PLACE_BYTES] for at in range(0, len(places), PLACE_BYTES))


@dataclass(frozen=True, slots=True)
class Standing:
    """One provider before a change. `live` has the index rows of those asked artifacts that it offers;
    `offers` and `entries` count all its offers and their index rows."""

    epoch: int = 0
    sequence: int = 0
    live: Mapping[ArtifactId, int] = field(default_factory=dict)
    offers: int = 0
    entries: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """In this order: with `renew` all offers end; those of `drop` end; those of `put` begin, each as
    (claim, expiry). `contact` is (addresses, expiry), or None to leave it."""

    epoch: int
    sequence: int
    renew: bool = False
    drop: frozenset[ArtifactId] = frozenset()
    put: Mapping[ArtifactId, tuple[Claim, int]] = field(default_factory=dict)
    contact: tuple[tuple[str, ...], int] | None = None

    def ordered(self) -> list[tuple[bytes, ArtifactId, Claim, int]]:
        """`put` as (claim's digest, artifact, claim, expiry) by digest: the order in which every store gives
        new claims their ids, and in which transactions that wait for each other do so without a deadlock."""
        return sorted(
            ((claim.digest, artifact, claim, expires) for artifact, (claim, expires) in self.put.items()),
            key=lambda item: item[0],
        )


@dataclass(frozen=True, slots=True)
class RefRecord:
    """`places` are those of its readers' names; `member` is who brought it."""

    name: str
    signer: PublicKey
    sequence: int
    artifact: ArtifactId
    expires: int | None
    envelope: bytes
    places: tuple[bytes, ...]
    member: PublicKey


class RefOutcome(enum.Enum):
    """What became of a ref."""

    KEPT = "kept"
    ROLLBACK = "rollback"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class AttestationRecord:
    """`digest` is that of the payload; one of a kind is kept once. `member` is who brought it."""

    artifact: ArtifactId
    signer: PublicKey
    digest: Digest
    envelope: bytes
    expires: int
    member: PublicKey


class RegistryStore(Protocol):
    """Safe for several threads, and where the rows are shared, for several processes. Times are Unix seconds.

    Everything raises UnavailableError `registry.busy`, `registry.away`, FullError `registry.disk`.
    """

    def change(
        self,
        provider: PublicKey,
        artifacts: Collection[ArtifactId],
        now: int,
        rule: Callable[[Standing], Change | None],
    ) -> None:
        """Apply what `rule` makes of the provider's standing, as one step. `rule` may be called again."""
        ...

    def lookup(self, places: Sequence[bytes], now: int) -> Matches:
        """`places`: for each reader the places of all asked keys, joined; up to MAX_READERS_ASKED of equal length.

        Finds the highest k such that a live claim is at place k of any reader, and the first claims there.
        """
        ...

    def put_ref(self, record: RefRecord, most: int) -> RefOutcome:
        """Keep it unless its signer has given the name a higher sequence, or this one to another artifact,
        or `member` has set `most` others."""
        ...

    def refs(self, places: Sequence[bytes], name: str, after: str, now: int, limit: int) -> list[tuple[str, bytes]]:
        """(name, envelope) of unexpired refs at these places: those of `name`, or those after `after`, by name."""
        ...

    def put_attestation(self, record: AttestationRecord, now: int, most: int, most_each: int) -> bool:
        """Keep it, unless its artifact has `most`, or `most_each` that this member brought, already."""
        ...

    def attestations(self, artifact: ArtifactId, now: int, limit: int) -> list[bytes]:
        """Envelopes, by signer and digest."""
        ...

    def contact(self, key: PublicKey, now: int) -> tuple[str, ...]: ...

    def sweep(self, now: int) -> int:
        """Remove what no longer counts; how many offers that were. Any number of sweeps may run at once."""
        ...

    def close(self) -> None: ...
