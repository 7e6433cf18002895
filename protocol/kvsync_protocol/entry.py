"""Entries of a library: a problem, a solution that a verifier passed, and the artifact that holds both (LIBRARY 1).

An entry is immutable and signed; its name is SHA-256 of the signed bytes. It says who found what, by which verifier,
and at what price. Whether the solution is right is for a verifier to say, again wherever it counts; whether the
address is the problem's, for whoever normalises problems. Knows no verifier and no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import figure, strictjson
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, TrustError, VersionError
from kvsync_protocol.limits import MAX_FIELD_BYTES, MAX_MESSAGE_BYTES, MAX_NAME_CHARS, MAX_TOKENS, KiB
from kvsync_protocol.signing import SigningKey

FORMAT: Final = 1
PAYLOAD_TYPE: Final = "application/vnd.kvsync.entry+json"
MAX_PROBLEM_BYTES: Final = 64 * KiB
MAX_SOLUTION_BYTES: Final = 256 * KiB
MAX_ENTRY_BYTES: Final = 768 * KiB


@dataclass(frozen=True, slots=True)
class VerifierRecord:
    """Which verifier passed a solution. `parameters` are its own, as JSON without fractions."""

    name: str
    version: str
    parameters: Mapping[str, object]

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "version": self.version, "parameters": dict(self.parameters)}

    @classmethod
    def parse(cls, value: object) -> VerifierRecord:
        fields = strictjson.Fields(value, "entry")
        found = cls(
            fields.string("name", limit=MAX_NAME_CHARS),
            fields.string("version", limit=MAX_NAME_CHARS),
            fields.mapping("parameters"),
        )
        fields.done()
        if len(strictjson.dumps(found.parameters)) > MAX_FIELD_BYTES:
            raise MalformedError("entry.range", f"parameters of more than {MAX_FIELD_BYTES} bytes")
        return found


@dataclass(frozen=True, slots=True)
class EntryCost:
    """What finding the solution took: tokens decoded and prefilled in all attempts together, and seconds."""

    decoded: int
    prefilled: int
    seconds: float

    def as_json(self) -> dict[str, object]:
        return {"decoded": self.decoded, "prefilled": self.prefilled, "seconds": figure.spell(self.seconds)}

    @classmethod
    def parse(cls, value: object) -> EntryCost:
        fields = strictjson.Fields(value, "entry")
        found = cls(
            fields.integer("decoded", 0, strictjson.MAX_SAFE_INTEGER),
            fields.integer("prefilled", 0, strictjson.MAX_SAFE_INTEGER),
            figure.read(fields.take("seconds")),
        )
        fields.done()
        if found.seconds < 0:
            raise MalformedError("entry.range", "a time below zero")
        return found


@dataclass(frozen=True, slots=True)
class Entry:
    """`Entry.parse(verified) == e` for a verified payload of `e.encode()`.

    `tokens` of the artifact, with digest `tokens_digest` (SPEC 3.1), are the worked example: the problem and then
    the solution, as `template` (None without one) writes them. `compatibility` is the digest of the model's
    compatibility fingerprint. `score` and `detail` are the verifier's words.
    """

    problem: str
    address: Digest
    solution: str
    verifier: VerifierRecord
    score: float
    detail: str
    artifact: ArtifactId
    tokens: int
    tokens_digest: Digest
    template: Digest | None
    compatibility: Digest
    cost: EntryCost

    @property
    def digest(self) -> Digest:
        """Names the entry."""
        return sha256(self.encode())

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "format": FORMAT,
                "problem": self.problem,
                "address": str(self.address),
                "solution": self.solution,
                "verifier": self.verifier.as_json(),
                "verdict": {"passed": True, "score": figure.spell(self.score), "detail": self.detail},
                "artifact": str(self.artifact),
                "tokens": {"count": self.tokens, "digest": str(self.tokens_digest)},
                "template": None if self.template is None else str(self.template),
                "compatibility": str(self.compatibility),
                "cost": self.cost.as_json(),
            }
        )

    def seal(self, key: SigningKey) -> Envelope:
        """Sign. Raises as `parse`, so that nothing is signed that would not be read."""
        payload = self.encode()
        self._read(payload)
        return Envelope.seal(PAYLOAD_TYPE, payload, key)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> Entry:
        """Raises MalformedError `json.*`, `entry.*`, `receipt.figure`, `digest.*`; TrustError `trust.payload_type`;
        VersionError `version.format`."""
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not an entry")
        return cls._read(verified.payload)

    @classmethod
    def _read(cls, payload: bytes) -> Entry:
        fields = strictjson.Fields(strictjson.loads(payload, limit=MAX_ENTRY_BYTES, what="the entry"), "entry")
        if fields.integer("format", 0, strictjson.MAX_SAFE_INTEGER) != FORMAT:
            raise VersionError("version.format", "an entry of another format", hint="use the kvsync that wrote it")
        verdict = strictjson.Fields(fields.take("verdict"), "entry")
        tokens = strictjson.Fields(fields.take("tokens"), "entry")
        if not verdict.boolean("passed"):
            raise MalformedError("entry.verdict", "an entry whose solution did not pass")
        found = cls(
            problem=fields.text("problem", limit=MAX_PROBLEM_BYTES),
            address=fields.digest("address"),
            solution=fields.text("solution", limit=MAX_SOLUTION_BYTES),
            verifier=VerifierRecord.parse(fields.take("verifier")),
            score=figure.read(verdict.take("score")),
            detail=verdict.text("detail", limit=MAX_MESSAGE_BYTES),
            artifact=ArtifactId(fields.digest("artifact")),
            tokens=tokens.integer("count", 1, MAX_TOKENS),
            tokens_digest=tokens.digest("digest"),
            template=fields.optional("template", fields.digest),
            compatibility=fields.digest("compatibility"),
            cost=EntryCost.parse(fields.take("cost")),
        )
        for each in (verdict, tokens, fields):
            each.done()
        if found.encode() != payload:
            raise MalformedError("entry.canonical", "the entry is written in another form than its one form")
        return found
