"""The longest prefix of a token sequence that this node can have: what is here, else what others say they have.

    tokens ─► prefix keys ─► store ─► one lookup at every registry ─► pull the longest from all who have it
                              │                                          │ refused, or not what was said
                              └── enough? ◄──────────────────────────────┴─► the next longest

What registries say decides only whom to ask: what comes is judged like any pull, and counted by what the store then
covers. Needs fingerprints, knows no engine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvsync.daemon.hearsay import Hearsay, Origins
from kvsync.graft.match import Match, best_matches
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.errors import CodedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.registry_messages import Match as Claim
from kvsync_protocol.schedule import Schedule

NOT_AS_SAID = "want.not_as_said"
STRANGERS = "want.strangers"


@dataclass(frozen=True, slots=True)
class Offer:
    """Somebody says that these peers have the first `blocks` asked blocks in this artifact."""

    artifact: ArtifactId
    blocks: int
    origins: Origins


@dataclass(slots=True)
class Wanted:
    """What the store covers in the end: `match`, or nothing. `fetched` is the report of the pull that made it so.

    `refused` says of every offer that came to nothing why, by error code.
    """

    match: Match | None
    fetched: Mapping[str, object] | None = None
    refused: list[tuple[ArtifactId, str]] = field(default_factory=list)

    @property
    def position(self) -> int:
        return 0 if self.match is None else self.match.position


Fetch = Callable[[Offer], Awaitable[Mapping[str, object]]]
"""Pulls what an offer promises and returns the pull's report. Raises CodedError."""


async def want(
    store: Store,
    hearsay: Hearsay,
    tokens: Sequence[int],
    fingerprints: Fingerprints,
    schedule: Schedule,
    fetch: Fetch,
    *,
    accept: str = "equal",
) -> Wanted:
    """See the module. Raises StoreError for lists and stores that cannot be read; no peer's failure."""

    def here() -> Match | None:
        return next(iter(best_matches(store, tokens, fingerprints, schedule, accept=accept)), None)

    wanted = Wanted(here())
    keys = prompt_keys(tokens, fingerprints, schedule)
    if len(keys) * schedule.block_tokens <= wanted.position:
        return wanted
    for offer in await offers(hearsay, keys):
        if offer.blocks * schedule.block_tokens <= wanted.position:
            break  # they come by length
        if not offer.origins.peers:
            wanted.refused.append((offer.artifact, STRANGERS))
            continue
        try:
            report = await fetch(offer)
        except CodedError as error:
            wanted.refused.append((offer.artifact, error.code))
            continue
        found = here()
        if found is None or found.position <= wanted.position:
            wanted.refused.append((offer.artifact, NOT_AS_SAID))
            continue
        wanted.match, wanted.fetched = found, report
    return wanted


def prompt_keys(tokens: Sequence[int], fingerprints: Fingerprints, schedule: Schedule) -> list[PrefixKey]:
    """Of the blocks that a graft can begin with: at least one token is left to compute."""
    usable = max(0, len(tokens) - 1) // schedule.block_tokens
    return list(block_keys(start_key(fingerprints), tokens[: usable * schedule.block_tokens], schedule))


async def offers(hearsay: Hearsay, keys: Sequence[PrefixKey]) -> list[Offer]:
    """The longest first; each artifact once, with everybody who is said to have it."""
    found: dict[tuple[ArtifactId, int], list[Claim]] = {}
    for shared, claim in await hearsay.longest(keys):
        found.setdefault((claim.artifact, min(shared, len(keys))), []).append(claim)
    made = [Offer(artifact, blocks, hearsay.known(claims, artifact)) for (artifact, blocks), claims in found.items()]
    return sorted(
        (offer for offer in made if offer.blocks), key=lambda offer: (-offer.blocks, not offer.origins.peers)
    )
