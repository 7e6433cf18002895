"""What goes into one sample of a run and what comes out: what records of several kinds share (SPEC 7.6).

    document  0 ────────── shared ──── document     an artifact is computed of all of it
    sequence  0 ────────── shared ─── new ───►      its first `shared` tokens are grafted, `new` follow

Nothing here knows how the digests came about.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.limits import BLOCK_TOKENS, MAX_BLOCK_TOKENS, MAX_NAME_CHARS, MAX_RECORDS, MAX_TOKENS
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER, Fields, dumps

FAMILY = "receipt"


class GraftMode(enum.Enum):
    """Whether all of an artifact is grafted, or its first full blocks."""

    WHOLE = "whole"
    PREFIX = "prefix"


@dataclass(frozen=True, slots=True)
class Settings:
    """How samples were drawn and run. `Settings.parse(fields)` reads what `as_json` gives.

    `generator`, `count`, `seed` and `limit` (the longest sequence) give the samples again.
    """

    model: str
    generator: str
    count: int
    seed: int
    limit: int
    decode_steps: int
    block_tokens: int = BLOCK_TOKENS

    @classmethod
    def parse(cls, fields: Fields) -> Settings:
        return cls(
            fields.string("model", limit=MAX_NAME_CHARS),
            fields.string("generator", limit=MAX_NAME_CHARS),
            fields.integer("count", 1, MAX_RECORDS),
            fields.integer("seed", 0, MAX_SAFE_INTEGER),
            fields.integer("limit", 1, MAX_TOKENS),
            fields.integer("decode_steps", 1, MAX_TOKENS),
            fields.integer("block_tokens", 1, MAX_BLOCK_TOKENS),
        )

    def as_json(self) -> dict[str, object]:
        return {
            "model": self.model,
            "generator": self.generator,
            "count": self.count,
            "seed": self.seed,
            "limit": self.limit,
            "decode_steps": self.decode_steps,
            "block_tokens": self.block_tokens,
        }


@dataclass(frozen=True, slots=True)
class Inputs:
    """`tokens` is the digest of the whole sequence; `cut` the artifact's end where that is an additional cut."""

    index: int
    mode: GraftMode
    tokens: Digest
    document: int
    shared: int
    new: int
    cut: int | None
    artifact: Digest

    @classmethod
    def parse(cls, fields: Fields) -> Inputs:
        modes = {mode.value: mode for mode in GraftMode}
        mode = modes.get(fields.string("mode", limit=MAX_NAME_CHARS))
        if mode is None:
            raise contradiction("a graft is whole or prefix")
        return cls(
            fields.integer("index", 0, MAX_RECORDS),
            mode,
            fields.digest("tokens"),
            fields.integer("document", 1, MAX_TOKENS),
            fields.integer("shared", 1, MAX_TOKENS),
            fields.integer("new", 1, MAX_TOKENS),
            fields.optional("cut", lambda name: fields.integer(name, 1, MAX_TOKENS)),
            fields.digest("artifact"),
        )

    def as_json(self) -> dict[str, object]:
        return {
            "index": self.index,
            "mode": self.mode.value,
            "tokens": str(self.tokens),
            "document": self.document,
            "shared": self.shared,
            "new": self.new,
            "cut": self.cut,
            "artifact": str(self.artifact),
        }

    @property
    def name(self) -> str:
        """Equal for equal sequences under equal cuts."""
        return f"{self.tokens} {self.shared} {self.cut or 0}"

    def check(self, settings: Settings, index: int) -> None:
        """Raises IntegrityError `receipt.score` unless this can be sample `index` of a run."""
        whole = self.mode is GraftMode.WHOLE
        fits = self.shared == self.document if whole else self.shared % settings.block_tokens == 0
        cut = self.document if whole and self.document % settings.block_tokens else None
        if self.index != index or self.shared > self.document or not fits or self.cut != cut:
            raise contradiction(f"record {index} is no sample {index} of its run")


@dataclass(frozen=True, slots=True)
class Outputs:
    """Digests of the logits of every new position, of those of the decode steps, and of the decoded tokens."""

    logits: Digest
    decode: Digest
    decoded: Digest

    @classmethod
    def parse(cls, fields: Fields) -> Outputs:
        return cls(fields.digest("logits"), fields.digest("decode"), fields.digest("decoded"))

    def as_json(self) -> dict[str, object]:
        return dict(self.by_name())

    def by_name(self) -> dict[str, str]:
        return {"logits": str(self.logits), "decode": str(self.decode), "decoded": str(self.decoded)}


def check_spelling(
    run: Mapping[str, object],
    records: Sequence[Mapping[str, object]],
    run_again: dict[str, object],
    records_again: Sequence[dict[str, object]],
) -> None:
    """Raises MalformedError `receipt.canonical` unless all is written as what was made of it writes it."""
    if dumps([run, *records]) != dumps([run_again, *records_again]):
        raise MalformedError("receipt.canonical", "a record or its settings have another form than their one form")


def contradiction(message: str) -> IntegrityError:
    """A record that is well formed and cannot be true."""
    return IntegrityError("receipt.score", message)
