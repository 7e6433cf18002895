"""What a graft did, or why it did nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsync.graft.decision import NOTHING, Decision
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.errors import CodedError
from kvsync_protocol.fingerprint import Difference

WHOLE = "whole"
PREFIX = "prefix"
MISS = "miss"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was grafted; `code` as in the error tables. `error` is for callers that raise it."""

    code: str
    message: str
    hint: str
    error: CodedError = field(compare=False, repr=False)

    @classmethod
    def of(cls, error: CodedError) -> Refusal:
        return cls(error.code, error.message, error.hint, error)

    def as_dict(self) -> dict[str, object]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class GraftReport:
    """One graft in numbers.

    `mode` is "whole" (reference: the fresh computation cut at the artifact's end), "prefix" (reference:
    the fresh computation under the caller's own cuts) or "miss". `seconds` is by stage. `checks` are those
    that passed, in order. `tolerated` names numerics fields that differed while the canary agreed.
    `bytes_verified_before` of the bytes came out of sealed memory, hashed earlier in this process.
    `tokens_shared` in full blocks are more than `tokens_grafted` where recurrent layers had no snapshot.
    `decision` says whether what was found was restored or is computed again because that is faster here; nothing is
    refused then, and all tokens are still to be computed.
    """

    mode: str
    tokens_grafted: int = 0
    tokens_shared: int = 0
    tokens_recomputed: int = 0
    artifact: ArtifactId | None = None
    chunks: int = 0
    bytes: int = 0
    bytes_verified_before: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    checks: tuple[str, ...] = ()
    tolerated: tuple[Difference, ...] = ()
    refused: Refusal | None = None
    decision: Decision = NOTHING

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "mode": self.mode,
            "artifact": None if self.artifact is None else str(self.artifact),
            "tokens_grafted": self.tokens_grafted,
            "tokens_shared": self.tokens_shared,
            "tokens_recomputed": self.tokens_recomputed,
            "chunks": self.chunks,
            "bytes": self.bytes,
            "bytes_verified_before": self.bytes_verified_before,
            "seconds": {stage: round(value, 6) for stage, value in self.seconds.items()},
            "checks": list(self.checks),
            "tolerated": [difference.field for difference in self.tolerated],
            **self.decision.as_dict(),
            "refused": None if self.refused is None else self.refused.as_dict(),
        }
