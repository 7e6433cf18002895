"""What the main job found, as values that render and serialise."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Pair:
    """One digest or figure of the fresh computation and of the graft."""

    fresh: str
    graft: str

    @property
    def equal(self) -> bool:
        return self.fresh == self.graft


@dataclass(frozen=True, slots=True)
class OneShot:
    """The canonical computation against a one-shot prefill: another reference, not the promise."""

    kl: float
    argmax_equal: bool


@dataclass(frozen=True, slots=True)
class DemoResult:
    """Every figure of one run. Seconds are wall time; rates are MB (10^6 bytes) per second."""

    model: str
    dtype: str
    artifact: str
    document_tokens: int
    question_tokens: int
    tokens_grafted: int
    tokens_recomputed: int
    artifact_bytes: int
    chunks: int
    compute_tokens_s: float
    pull_mb_s: float
    push_mb_s: float
    ttft_fresh_s: float
    ttft_graft_s: float
    graft_seconds: dict[str, float]
    logits_sha256: Pair
    decode_sha256: Pair
    one_shot: OneShot
    answer: str
    checks: tuple[str, ...]
    refusals: dict[str, str]
    live_cache_untouched: bool
    nodes: dict[str, str] = field(default_factory=dict)
    kept: str | None = None
    """Where the nodes' homes are, when they were to be kept."""

    EXPECTED_REFUSALS: ClassVar[dict[str, str]] = {
        "flipped byte in a stored chunk": "integrity.chunk",
        "flipped byte at the provider": "integrity.chunk",
        "manifest signed by a stranger": "trust.untrusted_signer",
        "stranger's artifact pulled": "trust.untrusted_signer",
        "same document, other weights": "mismatch.compatibility",
        "pulled for other weights": "mismatch.compatibility",
    }

    @property
    def speedup(self) -> float:
        return self.ttft_fresh_s / self.ttft_graft_s

    @property
    def exact(self) -> bool:
        return self.logits_sha256.equal and self.decode_sha256.equal and self.tokens_grafted == self.document_tokens

    @property
    def ok(self) -> bool:
        """Every check held; the command's exit status."""
        return self.exact and self.refusals == self.EXPECTED_REFUSALS and self.live_cache_untouched

    def as_dict(self) -> dict[str, object]:
        """Plain JSON values."""
        return {
            "ok": self.ok,
            "exact": self.exact,
            "model": self.model,
            "dtype": self.dtype,
            "artifact": self.artifact,
            "document_tokens": self.document_tokens,
            "question_tokens": self.question_tokens,
            "tokens_grafted": self.tokens_grafted,
            "tokens_recomputed": self.tokens_recomputed,
            "artifact_bytes": self.artifact_bytes,
            "chunks": self.chunks,
            "compute_tokens_s": round(self.compute_tokens_s, 1),
            "pull_mb_s": round(self.pull_mb_s, 1),
            "push_mb_s": round(self.push_mb_s, 1),
            "ttft_fresh_s": round(self.ttft_fresh_s, 4),
            "ttft_graft_s": round(self.ttft_graft_s, 4),
            "speedup": round(self.speedup, 1),
            "graft_seconds": self.graft_seconds,
            "logits_sha256": {"fresh": self.logits_sha256.fresh, "graft": self.logits_sha256.graft},
            "decode_sha256": {"fresh": self.decode_sha256.fresh, "graft": self.decode_sha256.graft},
            "one_shot": {
                "reference": "one-shot prefill, not the canonical schedule",
                "kl": self.one_shot.kl,
                "argmax_equal": self.one_shot.argmax_equal,
            },
            "answer": self.answer,
            "checks": list(self.checks),
            "refusals": dict(self.refusals),
            "live_cache_untouched": self.live_cache_untouched,
            "nodes": dict(self.nodes),
            "kept": self.kept,
        }
