"""What a provider says about itself to a registry, signed with its peer key (REGISTRY.md).

    Announcement   I serve this artifact, whose full blocks have these prefix keys, to these readers
    Withdrawal     I no longer serve this artifact, or any
    Contact        I can be reached at these addresses

All carry the provider's boot epoch and a sequence number that grows with every statement of one epoch, so
that an old statement, heard again, has no effect. They are hints: nothing in them proves that the provider
has a single byte.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import TrustError
from kvsync_protocol.limits import MAX_MANIFEST_BYTES
from kvsync_protocol.reader import MAX_READER_BYTES, MAX_READERS, check_readers
from kvsync_protocol.signing import SigningKey

ANNOUNCEMENT_TYPE: Final = "application/vnd.kvsync.announcement+json"
WITHDRAWAL_TYPE: Final = "application/vnd.kvsync.withdrawal+json"
CONTACT_TYPE: Final = "application/vnd.kvsync.contact+json"

MAX_ANNOUNCED_KEYS: Final = 8192
"""Full blocks whose keys one announcement lists: the first 2^21 tokens of 256-token blocks."""
MAX_ADDRESSES: Final = 16
MAX_ADDRESS_BYTES: Final = 300
MOST: Final = strictjson.MAX_SAFE_INTEGER


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a statement stands among those of one provider: later ones replace earlier ones.

    `epoch` grows with every start of the provider, `sequence` with every statement within an epoch.
    """

    epoch: int
    sequence: int

    def as_json(self) -> dict[str, int]:
        return {"epoch": self.epoch, "sequence": self.sequence}


@dataclass(frozen=True, slots=True)
class Announcement:
    """`keys` are those of the artifact's full blocks from the first on, in order; `size` is its bytes.

    `ttl_s` is how long to believe it, in seconds from the moment it is heard. `parse_statement(verified) == a`
    for a verified payload of `a.encode()`.
    """

    at: Moment
    artifact: ArtifactId
    compatibility: Digest
    numerics: Digest
    keys: tuple[PrefixKey, ...]
    size: int
    readers: tuple[str, ...]
    ttl_s: int

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                **self.at.as_json(),
                "artifact": str(self.artifact),
                "compatibility": str(self.compatibility),
                "numerics": str(self.numerics),
                "keys": [key.hex for key in self.keys],
                "bytes": self.size,
                "readers": list(self.readers),
                "ttl": self.ttl_s,
            }
        )

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(ANNOUNCEMENT_TYPE, self.encode(), key)


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """`artifact` None withdraws everything."""

    at: Moment
    artifact: ArtifactId | None = None

    def encode(self) -> bytes:
        artifact = None if self.artifact is None else str(self.artifact)
        return strictjson.dumps({**self.at.as_json(), "artifact": artifact})

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(WITHDRAWAL_TYPE, self.encode(), key)


@dataclass(frozen=True, slots=True)
class Contact:
    """Addresses, best first. Whoever connects still compares the key."""

    at: Moment
    addresses: tuple[str, ...]
    ttl_s: int

    def encode(self) -> bytes:
        return strictjson.dumps({**self.at.as_json(), "addresses": list(self.addresses), "ttl": self.ttl_s})

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(CONTACT_TYPE, self.encode(), key)


Statement: TypeAlias = Announcement | Withdrawal | Contact


def parse_statement(verified: VerifiedPayload) -> Statement:
    """The statement, by its payload type.

    Raises:
        MalformedError: `json.*`, `message.*`, `digest.syntax`, `key.*`, `ref.name`.
        TrustError: `trust.payload_type`.
    """
    if verified.payload_type not in (ANNOUNCEMENT_TYPE, WITHDRAWAL_TYPE, CONTACT_TYPE):
        raise TrustError("trust.payload_type", "not what a provider says about itself")
    found = strictjson.loads(verified.payload, limit=MAX_MANIFEST_BYTES, what="the statement")
    fields = strictjson.Fields(found, "message")
    at = Moment(fields.integer("epoch", 1, MOST), fields.integer("sequence", 1, MOST))
    statement: Statement
    match verified.payload_type:
        case t if t == ANNOUNCEMENT_TYPE:
            statement = _announcement(at, fields)
        case t if t == WITHDRAWAL_TYPE:
            named = fields.optional("artifact", fields.digest)
            statement = Withdrawal(at, None if named is None else ArtifactId(named))
        case _:
            addresses = fields.strings("addresses", limit=MAX_ADDRESSES, each=MAX_ADDRESS_BYTES)
            statement = Contact(at, addresses, fields.integer("ttl", 1, MOST))
    fields.done()
    return statement


def _announcement(at: Moment, fields: strictjson.Fields) -> Announcement:
    return Announcement(
        at,
        ArtifactId(fields.digest("artifact")),
        fields.digest("compatibility"),
        fields.digest("numerics"),
        tuple(PrefixKey(Digest.parse(key)) for key in fields.array("keys", limit=MAX_ANNOUNCED_KEYS)),
        fields.integer("bytes", 1, MOST),
        check_readers(fields.strings("readers", limit=MAX_READERS, each=MAX_READER_BYTES)),
        fields.integer("ttl", 1, MOST),
    )
