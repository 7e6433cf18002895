"""Blame records: a node's signed note that a peer sent other bytes than a leaf's (KEYS 7).

It accuses the peer, never the digest: others may have the right bytes. Kept by whoever made it; evidence of nothing
to others but that its signer says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_LEAVES, KiB
from kvsync_protocol.signing import PublicKey, SigningKey

PAYLOAD_TYPE: Final = "application/vnd.kvsync.blame+json"
MAX_BLAME_BYTES: Final = 4 * KiB
_CODE: Final = re.compile(r"[a-z_]{1,40}\.[a-z_]{1,40}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Blame:
    """`peer` sent for leaf `leaf` what `code` says, at Unix time `time`. `Blame.open(b.seal(k), {k.public}) == b`.

    `found` is the digest of what came, None where it had not even the leaf's size or its encoding was broken.

    Raises:
        MalformedError: `blame.code`.
    """

    peer: PublicKey
    artifact: ArtifactId
    leaf: int
    code: str
    found: Digest | None
    time: int

    def __post_init__(self) -> None:
        if not _CODE.fullmatch(self.code):
            raise MalformedError("blame.code", "what was wrong is told by an error code")

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "peer": str(self.peer),
                "artifact": str(self.artifact),
                "leaf": self.leaf,
                "code": self.code,
                "found": None if self.found is None else str(self.found),
                "time": self.time,
            }
        )

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(PAYLOAD_TYPE, self.encode(), key)

    @classmethod
    def open(cls, envelope: Envelope, keys: Collection[PublicKey]) -> Blame:
        """The record, once one of `keys` has signed these very bytes.

        Raises:
            TrustError: `trust.payload_type`, `trust.untrusted_signer`, `trust.bad_signature`.
            MalformedError: `json.*`, `blame.*`, `key.*`, `digest.*`.
        """
        verified = envelope.verify(PAYLOAD_TYPE, keys)
        return cls.parse(verified.payload)

    @classmethod
    def parse(cls, payload: bytes) -> Blame:
        """`Blame.parse(b.encode()) == b`. Raises MalformedError as `open`."""
        found = strictjson.loads(payload, limit=MAX_BLAME_BYTES, what="the blame record")
        fields = strictjson.Fields(found, "blame")
        blame = cls(
            PublicKey.parse(fields.take("peer")),
            ArtifactId(fields.digest("artifact")),
            fields.integer("leaf", 0, MAX_LEAVES - 1),
            fields.string("code", limit=100),
            fields.optional("found", fields.digest),
            fields.integer("time", 0, strictjson.MAX_SAFE_INTEGER),
        )
        fields.done()
        return blame
