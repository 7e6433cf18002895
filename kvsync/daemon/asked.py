"""A computation that a peer asked for: by whom, of which model, and how much. Knows no jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync.errors import PolicyError
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.limits import MAX_TOKENS
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.strictjson import Fields

_FAMILY: Final = "job"


@dataclass(frozen=True, slots=True)
class Asked:
    """By whom a computation was asked: the key that the peer is listed under, and what it may have computed."""

    key: PublicKey
    compatibility: Digest
    numerics: Digest
    max_tokens: int

    def as_json(self) -> dict[str, object]:
        return {
            "key": str(self.key),
            "compatibility": str(self.compatibility),
            "numerics": str(self.numerics),
            "max_tokens": self.max_tokens,
        }

    @classmethod
    def parse(cls, value: object) -> Asked:
        fields = Fields(value, _FAMILY)
        asked = cls(
            PublicKey.parse(fields.take("key")),
            fields.digest("compatibility"),
            fields.digest("numerics"),
            fields.integer("max_tokens", 1, MAX_TOKENS),
        )
        fields.done()
        return asked

    def check(self, fingerprints: Fingerprints, tokens: int) -> None:
        """Before anything is computed.

        Raises:
            MismatchError: `compute.other_model` when the model is not what was offered.
            PolicyError: `compute.too_long`.
        """
        found = (fingerprints.compatibility.digest, fingerprints.numerics.digest)
        if found != (self.compatibility, self.numerics):
            raise MismatchError(
                "compute.other_model", "the model has changed since it was offered", hint="kvsync model offer, again"
            )
        if tokens > self.max_tokens:
            raise too_long(tokens, self.max_tokens)


def too_long(tokens: int, most: int) -> PolicyError:
    return PolicyError("compute.too_long", f"{tokens} tokens are more than the {most} that a peer may have computed")
