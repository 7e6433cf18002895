"""Successors: a key's owner says which key follows it, signed by both (KEYS 1).

The old key vouches for the new one, the new one agrees. Until `until` both count, afterwards only the new
one. Who applies it, and to which list, is decided by whoever listed the old key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_STATEMENT_BYTES
from kvsync_protocol.signing import PublicKey, SigningKey

PAYLOAD_TYPE: Final = "application/vnd.kvsync.successor+json"
SIGNER: Final = "signer"
PEER: Final = "peer"


@dataclass(frozen=True, slots=True)
class Successor:
    """`kind` is "signer" or "peer": the list it is about. `since` and `until` are Unix times in seconds.

    `Successor.open(s.seal(old, new)) == s`.

    Raises:
        MalformedError: `successor.kind`, `successor.keys` when a key is to follow itself, `successor.time`.
    """

    kind: str
    old: PublicKey
    new: PublicKey
    sequence: int
    since: int
    until: int

    def __post_init__(self) -> None:
        if self.kind not in (SIGNER, PEER):
            raise MalformedError("successor.kind", "a successor is a signer's or a peer's")
        if self.old == self.new:
            raise MalformedError("successor.keys", "a key cannot follow itself")
        if self.since >= self.until:
            raise MalformedError("successor.time", "an overlap ends after it begins")

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "kind": self.kind,
                "old": str(self.old),
                "new": str(self.new),
                "sequence": self.sequence,
                "since": self.since,
                "until": self.until,
            }
        )

    def seal(self, old: SigningKey, new: SigningKey) -> Envelope:
        return Envelope.seal(PAYLOAD_TYPE, self.encode(), old, new)

    @classmethod
    def open(cls, envelope: Envelope) -> Successor:
        """The statement, once both keys that it names have signed these very bytes.

        Raises:
            MalformedError: `json.*`, `successor.*`, `key.*`.
            TrustError: `trust.payload_type`, `trust.untrusted_signer`.
        """
        found = _read(envelope.payload)
        envelope.verify(PAYLOAD_TYPE, {found.old, found.new}, threshold=2)
        return found


def _read(payload: bytes) -> Successor:
    found = strictjson.loads(payload, limit=MAX_STATEMENT_BYTES, what="the successor")
    fields = strictjson.Fields(found, "successor")
    statement = Successor(
        fields.string("kind", limit=16),
        PublicKey.parse(fields.take("old")),
        PublicKey.parse(fields.take("new")),
        fields.integer("sequence", 1, strictjson.MAX_SAFE_INTEGER),
        fields.integer("since", 1, strictjson.MAX_SAFE_INTEGER),
        fields.integer("until", 1, strictjson.MAX_SAFE_INTEGER),
    )
    fields.done()
    return statement
