"""Place a verified artifact's prefix into a fresh inference context, or refuse and touch nothing.

The order of checks is fixed, each is named in the report, and no byte reaches a cache before all of them
passed: signature, manifest, leaf table, token ids, fingerprints, template, then every chunk while it is
read. The cache is built aside; a failure at any point drops it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvsync.engines.engine import Context, Engine, Logits
from kvsync.errors import EngineError, NotFoundError, UsageError
from kvsync.graft.costs import Costs
from kvsync.graft.decision import ALWAYS, NOTHING, RECOMPUTE, Decision, decide
from kvsync.graft.match import Match, best_matches, match_artifact
from kvsync.graft.report import MISS, WHOLE, GraftReport, Refusal
from kvsync.pack import ArtifactReader, VerifiedChunks
from kvsync.pack.geometry import check_geometry
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import CodedError, MismatchError
from kvsync_protocol.fingerprint import Difference
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import PublicKey

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Graft:
    """The outcome. `context.cache` holds the grafted state, or nothing at all after a refusal or a miss.

    `next_tokens` are those not in the cache yet. After `advance` they cross no cut, so one forward call over
    them is the canonical one. When there are none, decoding starts from `final_logits`, which are stored
    with the artifact.
    """

    context: Context
    report: GraftReport
    next_tokens: tuple[int, ...]
    schedule: Schedule
    final_logits: Logits | None = None

    @property
    def cache(self) -> Any:
        """The engine's own cache object: for transformers a `Cache`, as `generate(cache=…)` takes it."""
        return self.context.cache

    @property
    def next_input_ids(self) -> torch.Tensor:
        """`next_tokens` as a tensor, `[1, len(next_tokens)]`, int64, on the model's device."""
        import torch

        return torch.tensor([self.next_tokens], dtype=torch.long, device=self.context.device)

    def repeat(self, rows: int) -> Any:
        """A new cache with the grafted state in each of `rows` rows, for `generate` on a batch of continuations.

        Exact against a fresh run that computes the prefix once, repeats its state and makes the same calls; not
        against a prefix that was computed `rows` rows at a time. Raises EngineError `engine.batch`.
        """
        return self.context.repeated(rows)

    def into(self, cache: Any) -> Any:
        """Move the grafted state into an empty cache that the caller has made, and return that.

        Raises:
            EngineError: `engine.unsupported_cache` for a class that keeps other bits, such as a static or a
                quantised one.
        """
        self.context.move_into(cache)
        return cache


@dataclass(slots=True)
class _Record:
    """What a report is made of, while it happens."""

    seconds: dict[str, float] = field(default_factory=dict)
    checks: list[str] = field(default_factory=list)
    tolerated: list[Difference] = field(default_factory=list)
    costs: Costs | None = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class _Checked:
    """An artifact whose description is verified; its chunks are verified while they are read."""

    match: Match
    schedule: Schedule
    layout: Layout
    """This model's own for so many tokens, which the signed one was found to be."""
    leaves: LeafTable


def graft(
    store: Store,
    trusted: Collection[PublicKey],
    engine: Engine,
    tokens: Sequence[int],
    *,
    artifact: ArtifactId | None = None,
    accept: str = "equal",
    template: Digest | None = None,
    advance: bool = True,
    recompute: bool = False,
    verified: VerifiedChunks | None = None,
    when: str = ALWAYS,
    costs: Costs | None = None,
) -> Graft:
    """Graft the longest verified prefix of `tokens`, or the given artifact's.

    Args:
        trusted: keys whose signatures count.
        accept: "equal", or "canary" (SPEC 6).
        template: digest of the chat template that shaped `tokens`, compared with the artifact's.
        advance: after a graft, compute what is missing up to the last cut, so that what remains is one
            call, as `generate` makes it. Without it `next_tokens` may cross cuts and are for `Engine.extend`.
        recompute: advance after a refusal or a miss as well, from an empty cache.
        verified: chunks that this process has hashed before, which need no second hash.
        when: "auto" computes again what would take longer to restore, "never" everything.
        costs: what "auto" decides by, and where this graft is noted.

    Returns:
        A graft; after a refusal its report says why and its cache is fresh and empty. After a decision to compute
        again it is as after a miss, `advance` included, and the reference is the same: the caller's own cuts.

    Raises:
        UsageError: `graft.empty`.
        EngineError: the model cannot be restored exactly or the tokens do not fit it.
    """
    if not tokens:
        raise UsageError("graft.empty", "there are no tokens to graft for")
    record = _Record(costs=costs)
    refusal: Refusal | None = None
    with record.stage("lookup"):
        candidates = _candidates(store, engine, tokens, artifact, accept)
    for candidate in candidates:
        try:
            with store.hold(candidate) as stored:
                return _place(
                    store, stored, trusted, engine, tokens, accept, template, record, verified, when, advance=advance
                )
        except EngineError:
            raise
        except CodedError as error:
            refusal = refusal or Refusal.of(error)
            record.checks.clear()
            record.tolerated.clear()
    if refusal is None:
        miss = "no artifact of this model and arithmetic that is stored here begins like these tokens"
        refusal = Refusal.of(NotFoundError("graft.miss", miss, hint="kvsync pull, or kvsync compute"))
    return _nothing(engine, tokens, record, refusal, NOTHING, recompute=recompute)


def lookup(
    store: Store, trusted: Collection[PublicKey], engine: Engine, tokens: Sequence[int], *, accept: str = "equal"
) -> Match | None:
    """What `graft` would begin with: the longest match whose description passes every check.

    Its chunks are verified when they are read, by `graft`.
    """
    for candidate in _candidates(store, engine, tokens, None, accept):
        try:
            with store.hold(candidate) as stored:
                return _check(store, stored, trusted, engine, tokens, accept, None, _Record()).match
        except EngineError:
            raise
        except CodedError as error:
            logger.debug("%s is passed over: %s", candidate, error)
    return None


def _candidates(
    store: Store, engine: Engine, tokens: Sequence[int], artifact: ArtifactId | None, accept: str
) -> list[ArtifactId]:
    if artifact is not None:
        return [artifact]
    found = best_matches(store, tokens, engine.fingerprints, engine.schedule, accept=accept)
    return list(dict.fromkeys(match.artifact for match in found))


def _place(
    store: Store,
    stored: StoredArtifact,
    trusted: Collection[PublicKey],
    engine: Engine,
    tokens: Sequence[int],
    accept: str,
    template: Digest | None,
    record: _Record,
    verified: VerifiedChunks | None,
    when: str,
    *,
    advance: bool,
) -> Graft:
    with record.stage("verify"):
        checked = _check(store, stored, trusted, engine, tokens, accept, template, record)
    match = checked.match
    whole = match.mode == WHOLE
    schedule = checked.schedule if whole else engine.schedule
    ended = whole and match.position == len(tokens)
    spans = list(checked.layout.chunks_for_graft(match.position, logits=ended))
    size = sum(span.size for span in spans)
    decision = decide(when, record.costs, engine.fingerprints, match.position, size)
    if decision.choice == RECOMPUTE:
        return _nothing(engine, tokens, record, None, decision, recompute=advance)
    reader = ArtifactReader(store, match.artifact, checked.layout, checked.leaves, verified=verified)
    with record.stage("restore"):
        final = engine.logits(reader) if ended else None
        context = engine.restore(reader, match.position)
        record.checks += ["chunks", "positions"]
    if record.costs is not None and not reader.bytes_verified_before:
        record.costs.restored(engine.fingerprints, size, record.seconds["restore"])
    if advance:
        _advance(engine, context, tokens, schedule, record)
    report = GraftReport(
        mode=match.mode,
        tokens_grafted=match.position,
        tokens_shared=match.shared,
        tokens_recomputed=len(tokens) - match.position,
        artifact=match.artifact,
        chunks=len(spans),
        bytes=size,
        bytes_verified_before=reader.bytes_verified_before,
        seconds=record.seconds,
        checks=tuple(record.checks),
        tolerated=tuple(record.tolerated),
        decision=decision,
    )
    return Graft(context, report, tuple(tokens[context.position :]), schedule, final)


def _check(
    store: Store,
    stored: StoredArtifact,
    trusted: Collection[PublicKey],
    engine: Engine,
    tokens: Sequence[int],
    accept: str,
    template: Digest | None,
    record: _Record,
) -> _Checked:
    """Everything that can be refused before a chunk is read. Raises the refusal."""
    manifest = Manifest.parse(stored.envelope.verify(PAYLOAD_TYPE, trusted))
    record.checks.append("signature")
    store.evidence.check(stored.artifact)
    leaves = stored.leaves()
    record.checks.append("merkle root")
    held = stored.tokens()
    record.checks.append("token ids")
    record.tolerated += engine.fingerprints.check(manifest.fingerprints, accept=accept)
    record.checks += ["compatibility", "canary" if record.tolerated else "numerics"]
    manifest.check_template(template)
    layout = engine.layout(len(held))
    check_geometry(layout, manifest.layout)
    record.checks.append("template and layout")
    match = match_artifact(stored, manifest, held, tokens, engine.schedule)
    if match is None:
        raise MismatchError("mismatch.tokens", "the tokens do not begin like the artifact's")
    if match.position == 0 and manifest.layout.restorable(match.shared):
        raise NotFoundError(
            "store.partial",
            f"of the {match.shared} tokens shared with the artifact, none that a graft can begin behind are here",
            hint=f"kvsync pull --tokens {match.shared} fetches them",
        )
    if match.position == 0:
        raise MismatchError(
            "mismatch.snapshot",
            f"the {match.shared} tokens shared with the artifact end before its first snapshot of recurrent layers",
            hint="extend the document, or compute what is shared as an artifact of its own",
        )
    return _Checked(match, manifest.schedule, layout, leaves)


def _advance(engine: Engine, context: Context, tokens: Sequence[int], schedule: Schedule, record: _Record) -> None:
    """Compute up to the last cut inside `tokens`; what is left is one canonical call."""
    segments = list(schedule.segments(context.position, len(tokens)))
    if len(segments) > 1:
        start, stop = context.position, segments[-1][0]
        with record.stage("recompute"):
            engine.prefill(context, tokens[start:stop], schedule)
        if record.costs is not None:
            record.costs.prefilled(engine.fingerprints, start, stop, record.seconds["recompute"])


def _nothing(
    engine: Engine,
    tokens: Sequence[int],
    record: _Record,
    refusal: Refusal | None,
    decision: Decision,
    *,
    recompute: bool,
) -> Graft:
    context = engine.new_context()
    if recompute:
        _advance(engine, context, tokens, engine.schedule, record)
    report = GraftReport(
        MISS, tokens_recomputed=len(tokens), seconds=record.seconds, refused=refusal, decision=decision
    )
    return Graft(context, report, tuple(tokens[context.position :]), engine.schedule)
