"""Receipts of kind `exactness`: is a graft the canonical fresh computation, byte for byte (SPEC 7.6).

Each record holds a sample's canonical outputs (a), those of three grafts (b to d) with their difference from (a),
and, for the first samples, other references: what is *not* promised to be equal, to show by how much it differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import figure, receipt
from kvsync_protocol.digest import Digest
from kvsync_protocol.limits import MAX_LIST_ENTRIES, MAX_MESSAGE_BYTES, MAX_RECORDS, MAX_TOKENS
from kvsync_protocol.receipt import Record
from kvsync_protocol.sample import FAMILY, GraftMode, Inputs, Outputs, Settings, check_spelling, contradiction
from kvsync_protocol.strictjson import Fields

KIND: Final = "exactness"
PATHS: Final = ("same_process", "fresh_process", "pulled")
"""(b) graft in the process that computed, (c) in a fresh one, (d) of what came from a peer over TLS."""
ONE_SHOT: Final = "one_shot"
UNCUT: Final = "uncut"
"""(e) one call over everything; (f) a whole graft against fresh without the cut at the artifact's end."""


def shift_name(shift: int) -> str:
    """(g) all positions moved by re-rotated keys."""
    return f"shift_{shift}"


@dataclass(frozen=True, slots=True)
class Drift:
    """How far logits are from the canonical ones.

    `kl` is the mean over new positions of KL(canonical ‖ other) in nats, `max_abs` the largest difference of two
    logits, `argmax` the number of new positions whose most likely token agrees.
    """

    kl: float
    max_abs: float
    argmax: int

    @classmethod
    def parse(cls, fields: Fields) -> Drift:
        return cls(
            figure.read(fields.take("kl")),
            figure.read(fields.take("max_abs")),
            fields.integer("argmax", 0, MAX_TOKENS),
        )

    def as_json(self) -> dict[str, object]:
        return {"kl": figure.spell(self.kl), "max_abs": figure.spell(self.max_abs), "argmax": self.argmax}

    def check(self, index: int, new: int, *, equal: bool) -> None:
        """Raises IntegrityError `receipt.score` when the figures contradict each other or the digests."""
        same = (self.kl, self.max_abs, self.argmax) == (0, 0, new)
        if self.kl < 0 or self.max_abs < 0 or self.argmax > new or ((equal or self.max_abs == 0) and not same):
            raise contradiction(f"the figures of record {index} contradict each other or its digests")


@dataclass(frozen=True, slots=True)
class PathResult:
    """One graft's outputs; `equal` when all of them are the canonical ones."""

    outputs: Outputs
    equal: bool
    drift: Drift

    @classmethod
    def parse(cls, value: object) -> PathResult:
        fields = Fields(value, FAMILY)
        found = cls(Outputs.parse(fields), fields.boolean("equal"), Drift.parse(fields))
        fields.done()
        return found

    def as_json(self) -> dict[str, object]:
        return {**self.outputs.as_json(), "equal": self.equal, **self.drift.as_json()}


@dataclass(frozen=True, slots=True)
class Reference:
    """Another reference's logits against the canonical ones, or why this model or sample has none."""

    logits: Digest | None
    drift: Drift | None
    refused: str | None = None

    @classmethod
    def parse(cls, value: object) -> Reference:
        fields = Fields(value, FAMILY)
        refused = fields.optional("refused", lambda name: fields.string(name, limit=MAX_MESSAGE_BYTES))
        found = cls(None, None, refused) if refused is not None else cls(fields.digest("logits"), Drift.parse(fields))
        fields.done()
        return found

    def as_json(self) -> dict[str, object]:
        if self.logits is None or self.drift is None:
            return {"refused": self.refused}
        return {"logits": str(self.logits), **self.drift.as_json()}


@dataclass(frozen=True, slots=True)
class Run:
    """A run's settings: the first `reference_samples` samples were also measured against other references."""

    samples: Settings
    reference_samples: int
    shifts: tuple[int, ...]

    @classmethod
    def parse(cls, value: Record) -> Run:
        fields = Fields(value, FAMILY)
        found = cls(
            Settings.parse(fields),
            fields.integer("reference_samples", 0, MAX_RECORDS),
            fields.integers("shifts", 1, MAX_TOKENS, limit=MAX_LIST_ENTRIES),
        )
        fields.done()
        return found

    def as_json(self) -> dict[str, object]:
        own = {"reference_samples": self.reference_samples, "shifts": list(self.shifts)}
        return {**self.samples.as_json(), **own}

    @property
    def references(self) -> tuple[str, ...]:
        return (ONE_SHOT, UNCUT, *map(shift_name, self.shifts))


@dataclass(frozen=True, slots=True)
class Sample:
    """One record."""

    inputs: Inputs
    canonical: Outputs
    paths: Mapping[str, PathResult]
    references: Mapping[str, Reference] | None

    @classmethod
    def parse(cls, value: Record) -> Sample:
        fields = Fields(value, FAMILY)
        canonical = Fields(fields.take("canonical"), FAMILY)
        paths = Fields(fields.take("paths"), FAMILY)
        references = fields.optional("references", fields.mapping)
        found = cls(
            Inputs.parse(fields),
            Outputs.parse(canonical),
            {name: PathResult.parse(paths.take(name)) for name in PATHS},
            None if references is None else {name: Reference.parse(each) for name, each in references.items()},
        )
        for each in (canonical, paths, fields):
            each.done()
        return found

    def as_json(self) -> dict[str, object]:
        references = self.references
        return {
            **self.inputs.as_json(),
            "canonical": self.canonical.as_json(),
            "paths": {name: path.as_json() for name, path in self.paths.items()},
            "references": None if references is None else {name: r.as_json() for name, r in references.items()},
        }

    def check(self, run: Run, index: int) -> None:
        """Raises IntegrityError `receipt.score` unless everything said of equality follows from the digests."""
        self.inputs.check(run.samples, index)
        for path in self.paths.values():
            if path.equal != (path.outputs == self.canonical):
                raise contradiction(f"record {index} calls outputs equal or unequal against their digests")
            path.drift.check(index, self.inputs.new, equal=path.outputs.logits == self.canonical.logits)
        expected = set(run.references) if index < run.reference_samples else set()
        if set(self.references or ()) != expected or (self.references is None) == bool(expected):
            raise contradiction(f"record {index} has other references than its run's settings say")
        for reference in (self.references or {}).values():
            if reference.drift is not None:
                equal = reference.logits == self.canonical.logits
                reference.drift.check(index, self.inputs.new, equal=equal)


class ExactnessScorer:
    """See `kvsync_protocol.receipt.Scorer`."""

    kind = KIND
    payload_type = receipt.PAYLOAD_TYPE

    def score(self, run: Record, records: Sequence[Record]) -> dict[str, object]:
        settings = Run.parse(run)
        samples = [Sample.parse(record) for record in records]
        check_spelling(run, records, settings.as_json(), [sample.as_json() for sample in samples])
        if len(samples) != settings.samples.count:
            raise contradiction(f"{len(samples)} records of a run of {settings.samples.count} samples")
        for index, sample in enumerate(samples):
            sample.check(settings, index)
        paths = {name: [sample.paths[name] for sample in samples] for name in PATHS}
        return {
            "samples": len(samples),
            "modes": {mode.value: sum(s.inputs.mode is mode for s in samples) for mode in GraftMode},
            "positions": sum(sample.inputs.new for sample in samples),
            "paths": {name: _path_summary(found) for name, found in paths.items()},
            "references": {name: _reference_summary(samples, name) for name in settings.references},
            "exact": all(path.equal for found in paths.values() for path in found),
        }

    def inputs(self, record: Record) -> str:
        return Sample.parse(record).inputs.name

    def outputs(self, record: Record) -> dict[str, str]:
        return Sample.parse(record).canonical.by_name()


def _path_summary(results: Sequence[PathResult]) -> dict[str, object]:
    return {"equal": sum(result.equal for result in results), **_drifts([result.drift for result in results])}


def _reference_summary(samples: Sequence[Sample], name: str) -> dict[str, object]:
    found = [(s, s.references[name]) for s in samples if s.references]
    measured = [(sample, reference) for sample, reference in found if reference.drift is not None]
    return {
        "samples": len(measured),
        "refused": len(found) - len(measured),
        "positions": sum(sample.inputs.new for sample, _ in measured),
        "equal": sum(reference.logits == sample.canonical.logits for sample, reference in measured),
        **_drifts([reference.drift for _, reference in measured if reference.drift is not None]),
    }


def _drifts(drifts: Sequence[Drift]) -> dict[str, object]:
    """Largest and mean figures; sums are exactly rounded, so that every implementation finds the same."""
    count = max(1, len(drifts))
    return {
        "argmax": sum(drift.argmax for drift in drifts),
        "kl_max": figure.spell(max((drift.kl for drift in drifts), default=0.0)),
        "kl_mean": figure.spell(math.fsum(drift.kl for drift in drifts) / count),
        "max_abs": figure.spell(max((drift.max_abs for drift in drifts), default=0.0)),
    }


SCORER: Final = ExactnessScorer()
