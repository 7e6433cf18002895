"""Refs: signed mutable names for artifacts, with a sequence number against rollback (SPEC 7)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, TrustError
from kvsync_protocol.limits import MAX_NAME_CHARS, MAX_REF_BYTES
from kvsync_protocol.signing import SigningKey

PAYLOAD_TYPE = "application/vnd.kvsync.ref+json"
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?(?:/[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?)*", re.ASCII)


def check_name(name: str) -> str:
    """Lower-case path-like names for people; they never become file names.

    Raises:
        MalformedError: `ref.name`.
    """
    if len(name) > MAX_NAME_CHARS or not _NAME.fullmatch(name) or ".." in name:
        raise MalformedError(
            "ref.name",
            f"{name!r} is not a name",
            hint="use lower-case letters, digits, '.', '_', '-' and '/', for example team/handbook",
        )
    return name


@dataclass(frozen=True, slots=True)
class Ref:
    """`sequence` grows with every change by one signer; whoever keeps refs refuses a smaller one.

    `expires` is a Unix time in seconds after which a reader must ask again instead of believing an old
    answer; None never expires. `Ref.parse(verified) == r` for a verified payload of `r.encode()`.
    """

    name: str
    artifact: ArtifactId
    sequence: int
    expires: int | None = None

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "name": self.name,
                "artifact": str(self.artifact),
                "sequence": self.sequence,
                "expires": self.expires,
            }
        )

    def check_fresh(self, now: int) -> None:
        """Raises TrustError `trust.expired` when `now`, Unix time in seconds, is past `expires`."""
        if self.expires is not None and now > self.expires:
            raise TrustError(
                "trust.expired",
                f"the ref {self.name!r} expired and was not renewed",
                hint="check this host's clock, then ask the signer to publish it again",
            )

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(PAYLOAD_TYPE, self.encode(), key)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> Ref:
        """Raises MalformedError `json.*`, `ref.*`; TrustError `trust.payload_type`."""
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not a ref")
        fields = strictjson.Fields(strictjson.loads(verified.payload, limit=MAX_REF_BYTES, what="the ref"), "ref")
        ref = cls(
            check_name(fields.string("name", limit=4 * MAX_NAME_CHARS)),
            ArtifactId(fields.digest("artifact")),
            fields.integer("sequence", 1, strictjson.MAX_SAFE_INTEGER),
            fields.optional("expires", lambda name: fields.integer(name, 1, strictjson.MAX_SAFE_INTEGER)),
        )
        fields.done()
        return ref
