"""Compute a token sequence once and store its KV state as a signed artifact.

A block is made durable while the next ones are computed, two behind at most, and progress tells of durable ones: a
killed deposit resumes at the last stored block. Blocks that this node has computed before, for a document with the
same beginning, are not computed again.
"""

from __future__ import annotations

import logging
import struct
import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import cast

from kvsync.engines.engine import Context, Engine
from kvsync.errors import NotFoundError, UsageError
from kvsync.graft.costs import Costs
from kvsync.pack import ArtifactReader, ArtifactWriter
from kvsync.progress import Progress, silent
from kvsync.store import ComputeDraft, Store, StoredArtifact
from kvsync.store.worth import whole_cost
from kvsync_protocol.digest import ArtifactId, Digest, hash_record, sha256
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import block_keys, encode_tokens, start_key, tokens_digest
from kvsync_protocol.ref import Ref, check_name
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

log = logging.getLogger(__name__)


def deposit(
    store: Store,
    engine: Engine,
    signer: SigningKey,
    tokens: Sequence[int],
    *,
    text: Digest | None = None,
    template: Digest | None = None,
    boundaries: Sequence[int] = (),
    name: str | None = None,
    progress: Progress = silent,
    costs: Costs | None = None,
) -> StoredArtifact:
    """Compute, sign and store the artifact of `tokens`; one that is already here is only named.

    What others have signed about the same computation with other bytes is kept as a divergence (`store.evidence`).

    Args:
        text: digest of the UTF-8 text the tokens came from.
        template: digest of the chat template that shaped the text, if one did.
        boundaries: earlier cuts, where these tokens extend another artifact's.
        name: a ref to point at the artifact.
        costs: where it is noted how long the computation took.

    Raises:
        UsageError: `deposit.empty`, `deposit.boundary`.
        EngineError: from the engine, before anything is stored.
        StoreError: `store.full` and others; verified blocks are kept for the next attempt.
    """
    if not tokens:
        raise UsageError("deposit.empty", "there are no tokens to compute", hint="give a document with text in it")
    if name is not None:
        check_name(name)
    layout = engine.layout(len(tokens))
    schedule = _schedule(engine.schedule, boundaries, len(tokens))
    record = TokenRecord(tokens_digest(tokens), len(tokens), text, template)
    stored = _already(store, engine, signer, tokens, record, schedule)
    if stored is None:
        with store.compute_draft(_plan(engine, record, schedule), expected_bytes=layout.total_bytes) as draft:
            stored = _compute(store, draft, engine, signer, tokens, record, schedule, layout, progress, costs)
        _compare(store, stored)
    if name is not None:
        set_name(store, signer, name, stored.artifact)
    return stored


def set_name(store: Store, signer: SigningKey, name: str, artifact: ArtifactId) -> Ref:
    """Point `name` at `artifact` with the next sequence number of this signer."""
    ref = Ref(check_name(name), artifact, store.ref_sequence(name, signer.public) + 1)
    store.set_ref(ref, ref.seal(signer), signer.public)
    return ref


def _compare(store: Store, stored: StoredArtifact) -> None:
    """Keep evidence of every artifact here that has other bytes than were just computed for the same."""
    for record, other in store.evidence.contradictions(store.evidence.describe(stored.artifact)):
        store.evidence.add_divergence(record)
        log.warning(
            "block %d is not what artifact %s has: kvsync audit %s",
            record.block,
            other.manifest.artifact.short,
            other.manifest.artifact.short,
        )


def _schedule(base: Schedule, boundaries: Sequence[int], end: int) -> Schedule:
    schedule = base
    for place in boundaries:
        if not 0 < place < end:
            raise UsageError("deposit.boundary", f"boundary {place} is not inside the {end} tokens")
        schedule = schedule.with_boundary(place)
    return schedule.with_boundary(end)


def _plan(engine: Engine, record: TokenRecord, schedule: Schedule) -> Digest:
    """Names a computation that may be resumed: the same inputs under the same fingerprints."""
    pair = engine.fingerprints
    cuts = struct.pack(f"<{1 + len(schedule.boundaries)}I", schedule.block_tokens, *schedule.boundaries)
    items = [pair.compatibility.digest.raw, pair.numerics.digest.raw, record.digest.raw, cuts]
    return hash_record("kvsync/plan/1", items)


def _already(
    store: Store, engine: Engine, signer: SigningKey, tokens: Sequence[int], record: TokenRecord, schedule: Schedule
) -> StoredArtifact | None:
    """The same computation, stored completely and signed by this node."""
    found = store.find_whole(tokens, engine.fingerprints)
    stored = None if found is None else store.whole(found)  # a chunk may have been set aside
    if stored is None:
        return None
    same = (stored.manifest.tokens, stored.manifest.schedule, stored.extent) == (record, schedule, None)
    return stored if same and stored.envelope.signers([signer.public]) else None


def _compute(
    store: Store,
    draft: ComputeDraft,
    engine: Engine,
    signer: SigningKey,
    tokens: Sequence[int],
    record: TokenRecord,
    schedule: Schedule,
    layout: Layout,
    progress: Progress,
    costs: Costs | None,
) -> StoredArtifact:
    blocks = _resume(store, draft, engine, signer, tokens, schedule, layout)
    blocks, context = _restore(draft, engine, layout, ArtifactId(record.digest), store, blocks)
    position = blocks * layout.block_tokens
    writer = ArtifactWriter(draft, layout, next_block=blocks)
    began = time.monotonic()
    logits = engine.prefill(context, tokens[position:], schedule, sink=writer.write_block, progress=progress)
    writer.write_logits(logits.buffer())
    cost = whole_cost(time.monotonic() - began, position, len(tokens))
    if costs is not None:
        costs.prefilled(engine.fingerprints, position, len(tokens), time.monotonic() - began)
    table = LeafTable.of(draft.leaves)
    leaves = table.encode()
    manifest = Manifest(
        tokens=record,
        schedule=schedule,
        layout=layout,
        leaf_table=sha256(leaves),
        tree=Tree(table.root, len(table.leaves), table.total_bytes),
        fingerprints=engine.fingerprints,
    )
    return draft.publish(manifest.seal(signer), manifest, leaves, encode_tokens(tokens), cost_s=cost)


def _resume(
    store: Store,
    draft: ComputeDraft,
    engine: Engine,
    signer: SigningKey,
    tokens: Sequence[int],
    schedule: Schedule,
    layout: Layout,
) -> int:
    """Leave the leaves of as many leading blocks in the draft as need no computing; return their number.

    At least one token is always computed, since the final logits are stored with no block. The computation goes on
    where the kept leaves hold every layer's state, of recurrent layers a snapshot. Blocks are adopted only from
    artifacts this node has signed: a signature vouches for bytes one has computed.
    """
    blocks = _keep(draft, layout, len(draft.leaves))
    keys = list(block_keys(start_key(engine.fingerprints), tokens, schedule))[: _usable(layout)]
    found = store.find_prefixes(keys, partial=False)  # a computation goes on behind all leaves of its blocks
    shared = layout.resumable(found[0][1]) if found else 0
    if shared <= blocks:
        return blocks
    with store.hold(found[0][0]) as source:  # neither gc nor rm takes its chunks before the draft has leased them
        if not source.envelope.signers([signer.public]):
            return blocks
        for leaf in source.leaves().leaves[layout.leading_leaves(blocks) : layout.leading_leaves(shared)]:
            try:
                draft.adopt(leaf)
            except NotFoundError:  # it was found damaged and set aside
                break
    return _keep(draft, layout, len(draft.leaves))


def _restore(
    draft: ComputeDraft, engine: Engine, layout: Layout, name: ArtifactId, store: Store, blocks: int
) -> tuple[int, Context]:
    """A context behind the draft's first blocks: all of them, or those before the first that turns out damaged."""
    while blocks:
        reader = ArtifactReader(store, name, layout, LeafTable.of(draft.leaves))
        try:
            return blocks, engine.restore(reader, blocks * layout.block_tokens)
        except IntegrityError as damage:
            blocks = _keep(draft, layout, cast(int, damage.fields["chunk"]))  # the reader has set it aside
    return 0, engine.new_context()


def _usable(layout: Layout) -> int:
    """Blocks that may be taken over: at least one token is always computed, for the final logits."""
    return (layout.tokens - 1) // layout.block_tokens


def _keep(draft: ComputeDraft, layout: Layout, leaves: int) -> int:
    """Leave whole resumable blocks among the first `leaves` in the draft; their number."""
    complete = bisect_right(range(_usable(layout) + 1), leaves, key=layout.leading_leaves) - 1
    blocks = layout.resumable(complete)
    draft.truncate(layout.leading_leaves(blocks))
    return blocks
