"""Which stored artifact covers most of a token sequence. Torch-free; trusts nothing it finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvsync.graft.report import PREFIX, WHOLE
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import CodedError, MismatchError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Match:
    """`artifact` covers the first `position` tokens: all of its own ("whole"), or full blocks ("prefix").

    `shared` tokens are alike in full blocks. It is larger than `position` where recurrent layers have no snapshot, or
    where of an artifact kept in part less is here.
    """

    artifact: ArtifactId
    mode: str
    position: int
    shared: int


def best_matches(
    store: Store, tokens: Sequence[int], ours: Fingerprints, schedule: Schedule, *, accept: str = "equal"
) -> list[Match]:
    """Candidates by the number of tokens they cover, most first.

    Under `accept` "canary" also those of other hosts whose numerics differ in words but not in the canary.
    """
    pairs = [ours, *(_tolerable(store, ours) if accept == "canary" else [])]
    found = [match for pair in pairs for match in _matches(store, tokens, pair, schedule)]
    return sorted(found, key=lambda match: match.position, reverse=True)


def _tolerable(store: Store, ours: Fingerprints) -> Iterator[Fingerprints]:
    for theirs in store.fingerprints():
        try:
            if ours.check(theirs, accept="canary"):
                yield theirs
        except MismatchError:
            continue


def _matches(store: Store, tokens: Sequence[int], fingerprints: Fingerprints, schedule: Schedule) -> Iterator[Match]:
    whole = store.find_whole(tokens, fingerprints)
    if whole is not None:
        stored = _stored(store, whole)
        count = len(tokens) if stored is None else stored.manifest.tokens.count
        yield Match(whole, WHOLE, count, count)
    usable = (len(tokens) - 1) // schedule.block_tokens
    keys = list(block_keys(start_key(fingerprints), tokens[: usable * schedule.block_tokens], schedule))
    for artifact, blocks in store.find_prefixes(keys):
        shared = blocks * schedule.block_tokens
        stored = _stored(store, artifact)
        position = shared if stored is None else stored.restorable(shared)
        if position:
            yield Match(artifact, PREFIX, position, shared)


def _stored(store: Store, artifact: ArtifactId) -> StoredArtifact | None:
    """None when it has gone since it was found, or its files are damaged: whoever uses it is told so."""
    try:
        return store.artifact(artifact)
    except CodedError:
        return None


def match_artifact(
    stored: StoredArtifact, manifest: Manifest, held: Sequence[int], tokens: Sequence[int], schedule: Schedule
) -> Match | None:
    """How far one given artifact, `held` being its tokens, covers `tokens`; None when they share no usable block.

    Its position is 0 when they share blocks, but none that recurrent layers have a snapshot behind, or that are kept
    here. A prefix ends before the first cut inside a block: from there on the artifact's computation is not the
    caller's.
    """
    whole = len(held) <= len(tokens) and tuple(tokens[: len(held)]) == tuple(held)
    if whole and stored.covers(len(held)):
        return Match(stored.artifact, WHOLE, len(held), len(held))
    size = schedule.block_tokens
    shared = next(
        (i for i, (a, b) in enumerate(zip(held, tokens, strict=False)) if a != b), min(len(held), len(tokens))
    )
    early = [cut for cut in manifest.schedule.boundaries if cut < len(held)]
    blocks = min(shared, early[0] if early else shared, len(tokens) - 1) // size
    return Match(stored.artifact, PREFIX, stored.restorable(blocks * size), blocks * size) if blocks else None
