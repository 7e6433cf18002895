"""The same continuation of a sample, computed afresh or on a graft, and how far two of them are apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvsync.engines.engine import Context, Engine, Logits
from kvsync.errors import EngineError
from kvsync.evidence.samples import DECODE_STEPS, Sample
from kvsync.graft import graft
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.exactness import Drift, PathResult
from kvsync_protocol.prefix import tokens_digest
from kvsync_protocol.sample import Outputs
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import PublicKey


@dataclass(frozen=True, slots=True)
class Measured:
    """Logits of every new position, and the digests of all outputs."""

    logits: Logits
    outputs: Outputs


def fresh(engine: Engine, sample: Sample, pool: Sequence[int]) -> Measured:
    """The canonical computation, from nothing."""
    context, schedule = engine.new_context(), sample.schedule(engine.schedule)
    engine.prefill(context, sample.document_tokens(pool)[: sample.shared], schedule)
    return _carry_on(engine, context, sample.new_tokens(pool), schedule)


def repeatable(engine: Engine, sample: Sample, pool: Sequence[int], first: Outputs) -> Measured:
    """`fresh`, which must give `first` again: what it is compared with was computed at another time.

    Raises:
        EngineError: `prove.not_repeatable`.
    """
    again = fresh(engine, sample, pool)
    if again.outputs != first:
        raise EngineError(
            "prove.not_repeatable",
            "the same fresh computation gave other bytes at another time: this stack does not repeat itself",
            hint="look at what this numerics fingerprint says under determinism, environment and threads",
            numerics=[f"{name}={value}" for name, value in sorted(engine.fingerprints.numerics.fields.items())],
        )
    return again


def grafted(
    engine: Engine,
    store: Store,
    trusted: Sequence[PublicKey],
    artifact: ArtifactId,
    sample: Sample,
    pool: Sequence[int],
) -> Measured:
    """The graft with every check on, then the same calls.

    Raises:
        EngineError: `prove.refused` when the graft was refused or covers other tokens than planned.
    """
    found = graft(store, trusted, engine, sample.sequence(pool), artifact=artifact, advance=False)
    report = found.report
    if report.refused is not None:
        raise EngineError("prove.refused", f"sample {sample.index}: {report.refused.code}: {report.refused.message}")
    if (report.mode, report.tokens_grafted) != (sample.mode.value, sample.shared):
        raise EngineError(
            "prove.refused", f"sample {sample.index} grafted {report.tokens_grafted} tokens, not {sample.shared}"
        )
    return _carry_on(engine, found.context, list(found.next_tokens), found.schedule)


def _carry_on(engine: Engine, context: Context, new: Sequence[int], schedule: Schedule) -> Measured:
    logits = engine.extend(context, new, schedule)
    tokens, decoded = engine.decode_greedy(context, logits, DECODE_STEPS)
    return Measured(logits, Outputs(logits.sha256(), decoded.sha256(), tokens_digest(tokens)))


def drift(canonical: Logits, other: Logits) -> Drift:
    """How far `other` is from the canonical logits of the same positions.

    Raises:
        EngineError: `prove.not_finite` where unequal logits hold NaN or infinities, which have no distance.
    """
    if canonical.sha256() == other.sha256():
        return Drift(0.0, 0.0, canonical.positions)
    agreeing = sum(a == b for a, b in zip(canonical.argmax(), other.argmax(), strict=True))
    found = Drift(canonical.kl(other), canonical.max_abs(other), agreeing)
    if not (math.isfinite(found.kl) and math.isfinite(found.max_abs)):
        raise EngineError(
            "prove.not_finite",
            "the model's logits hold NaN or infinities: how far two computations are apart cannot be said",
            hint="another --dtype; in fp16 large activations overflow",
        )
    return found


def compared(canonical: Measured, other: Measured) -> PathResult:
    """A graft against the canonical computation."""
    equal = canonical.outputs == other.outputs
    return PathResult(other.outputs, equal, drift(canonical.logits, other.logits))
