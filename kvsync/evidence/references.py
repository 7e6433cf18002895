"""What is not promised to be equal, measured to show by how much it differs from the canonical computation."""

from __future__ import annotations

from collections.abc import Sequence

from kvsync.engines import extend_shifted
from kvsync.engines.engine import Engine, Logits
from kvsync.errors import EngineError
from kvsync.evidence.measure import Measured, drift
from kvsync.evidence.samples import Sample
from kvsync.pack import ArtifactReader
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.exactness import ONE_SHOT, UNCUT, Reference, shift_name
from kvsync_protocol.sample import GraftMode


def references(
    engine: Engine,
    store: Store,
    artifact: ArtifactId,
    sample: Sample,
    pool: Sequence[int],
    canonical: Measured,
    shifts: Sequence[int],
) -> dict[str, Reference]:
    """One-shot prefill, a whole graft's uncut counterpart, and shifted positions."""
    one_shot = engine.one_shot(sample.sequence(pool), keep=sample.new)
    found = {ONE_SHOT: _measured(canonical, one_shot), UNCUT: _uncut(engine, sample, pool, canonical)}
    with store.hold(artifact) as stored:
        reader = ArtifactReader(store, stored.artifact, stored.manifest.layout, stored.leaves())
        for shift in shifts:
            found[shift_name(shift)] = _shifted(engine, reader, sample, pool, canonical, shift)
    return found


def _uncut(engine: Engine, sample: Sample, pool: Sequence[int], canonical: Measured) -> Reference:
    """Fresh, as a caller would compute who has no artifact: without the cut at the artifact's end."""
    cuts = engine.schedule
    if sample.mode is GraftMode.PREFIX or sample.document % cuts.block_tokens == 0:
        return Reference(None, None, "this sample's artifact adds no cut")
    tokens = sample.sequence(pool)
    start = sample.document - sample.document % cuts.block_tokens
    context = engine.new_context()
    if start:
        engine.prefill(context, tokens[:start], cuts)
    return _measured(canonical, engine.extend(context, tokens[start:], cuts).tail(sample.new))


def _shifted(
    engine: Engine, reader: ArtifactReader, sample: Sample, pool: Sequence[int], canonical: Measured, shift: int
) -> Reference:
    try:
        context = engine.restore(reader, sample.shared)
        new, schedule = sample.new_tokens(pool), sample.schedule(engine.schedule)
        return _measured(canonical, extend_shifted(engine, context, new, schedule, shift))
    except EngineError as error:
        if not error.code.startswith("engine.shift"):
            raise
        return Reference(None, None, error.message)


def _measured(canonical: Measured, other: Logits) -> Reference:
    return Reference(other.sha256(), drift(canonical.logits, other))
