"""Preregistrations, and the receipts of their replays (SPEC 7.6).

A preregistration commits, before anybody else has computed them, to inputs, settings, fingerprints and the outputs
to expect. Its signer numbers them. A replay's receipt names the preregistration and says for every record whether
another host found the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import receipt
from kvsync_protocol.digest import Digest
from kvsync_protocol.receipt import Record
from kvsync_protocol.sample import FAMILY, Inputs, Outputs, Settings, check_spelling, contradiction
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER, Fields

PAYLOAD_TYPE: Final = "application/vnd.kvsync.prereg+json"
PREREG: Final = "prereg"
REPLAY: Final = "replay"


@dataclass(frozen=True, slots=True)
class Commitment:
    """A preregistration's settings. `sequence` grows by one with each that its signer makes."""

    samples: Settings
    sequence: int

    @classmethod
    def parse(cls, value: Record) -> Commitment:
        fields = Fields(value, FAMILY)
        found = cls(Settings.parse(fields), fields.integer("sequence", 1, MAX_SAFE_INTEGER))
        fields.done()
        return found

    def as_json(self) -> dict[str, object]:
        return {**self.samples.as_json(), "sequence": self.sequence}


@dataclass(frozen=True, slots=True)
class Expectation:
    """A record of a preregistration: outputs of the canonical computation."""

    inputs: Inputs
    canonical: Outputs

    @classmethod
    def parse(cls, value: Record) -> Expectation:
        fields = Fields(value, FAMILY)
        canonical = Fields(fields.take("canonical"), FAMILY)
        found = cls(Inputs.parse(fields), Outputs.parse(canonical))
        canonical.done()
        fields.done()
        return found

    def as_json(self) -> dict[str, object]:
        return {**self.inputs.as_json(), "canonical": self.canonical.as_json()}


class PreregScorer:
    """See `kvsync_protocol.receipt.Scorer`."""

    kind = PREREG
    payload_type = PAYLOAD_TYPE

    def score(self, run: Record, records: Sequence[Record]) -> dict[str, object]:
        commitment = Commitment.parse(run)
        found = [Expectation.parse(record) for record in records]
        _check(commitment.samples, [each.inputs for each in found])
        check_spelling(run, records, commitment.as_json(), [each.as_json() for each in found])
        return {"samples": len(found), "positions": sum(each.inputs.new for each in found)}

    def inputs(self, record: Record) -> str:
        return Expectation.parse(record).inputs.name

    def outputs(self, record: Record) -> dict[str, str]:
        return Expectation.parse(record).canonical.by_name()


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """A replay's settings: `prereg` is the digest of the preregistration's signed header, `registrar` its signer."""

    samples: Settings
    prereg: Digest
    registrar: PublicKey
    sequence: int

    @classmethod
    def parse(cls, value: Record) -> ReplayRun:
        fields = Fields(value, FAMILY)
        found = cls(
            Settings.parse(fields),
            fields.digest("prereg"),
            PublicKey.parse(fields.take("registrar")),
            fields.integer("sequence", 1, MAX_SAFE_INTEGER),
        )
        fields.done()
        return found

    def as_json(self) -> dict[str, object]:
        own = {"prereg": str(self.prereg), "registrar": str(self.registrar), "sequence": self.sequence}
        return {**self.samples.as_json(), **own}


@dataclass(frozen=True, slots=True)
class Replayed:
    """A record of a replay: what was expected, what was found, and whether they are one."""

    inputs: Inputs
    expected: Outputs
    found: Outputs

    @property
    def match(self) -> bool:
        return self.expected == self.found

    @classmethod
    def parse(cls, value: Record) -> Replayed:
        fields = Fields(value, FAMILY)
        expected, found = (Fields(fields.take(name), FAMILY) for name in ("expected", "found"))
        match = fields.boolean("match")
        replayed = cls(Inputs.parse(fields), Outputs.parse(expected), Outputs.parse(found))
        for each in (expected, found, fields):
            each.done()
        if match != replayed.match:
            raise contradiction(f"record {replayed.inputs.index} calls outputs a match against their digests")
        return replayed

    def as_json(self) -> dict[str, object]:
        both = {"expected": self.expected.as_json(), "found": self.found.as_json()}
        return {**self.inputs.as_json(), **both, "match": self.match}


class ReplayScorer:
    """See `kvsync_protocol.receipt.Scorer`."""

    kind = REPLAY
    payload_type = receipt.PAYLOAD_TYPE

    def score(self, run: Record, records: Sequence[Record]) -> dict[str, object]:
        replay = ReplayRun.parse(run)
        found = [Replayed.parse(record) for record in records]
        _check(replay.samples, [each.inputs for each in found])
        check_spelling(run, records, replay.as_json(), [each.as_json() for each in found])
        matches = sum(each.match for each in found)
        return {"samples": len(found), "matches": matches, "exact": matches == len(found)}

    def inputs(self, record: Record) -> str:
        return Replayed.parse(record).inputs.name

    def outputs(self, record: Record) -> dict[str, str]:
        return Replayed.parse(record).found.by_name()


def _check(settings: Settings, samples: Sequence[Inputs]) -> None:
    if len(samples) != settings.count:
        raise contradiction(f"{len(samples)} records of a run of {settings.count} samples")
    for index, inputs in enumerate(samples):
        inputs.check(settings, index)


PREREG_SCORER: Final = PreregScorer()
REPLAY_SCORER: Final = ReplayScorer()
