"""Revocation lists: one authority's word that keys no longer count, with a sequence number (KEYS 2).

A list is complete: it replaces the authority's earlier one. Which authorities count, and for which keys, is
decided by whoever reads it; a key can always revoke itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_LIST_ENTRIES, MAX_REVOCATION_BYTES
from kvsync_protocol.signing import PublicKey, SigningKey

PAYLOAD_TYPE: Final = "application/vnd.kvsync.revocations+json"


@dataclass(frozen=True, slots=True)
class RevocationList:
    """`keys` ascend by their text, each once, at least one. `RevocationList.open(r.seal(key)) == r`.

    Raises:
        MalformedError: `revocation.keys`.
    """

    authority: PublicKey
    sequence: int
    keys: tuple[PublicKey, ...]

    def __post_init__(self) -> None:
        texts = [str(key) for key in self.keys]
        if not texts or len(texts) > MAX_LIST_ENTRIES or texts != sorted(set(texts)):
            raise MalformedError(
                "revocation.keys", f"1 to {MAX_LIST_ENTRIES} keys in ascending order, each once, are expected"
            )

    def encode(self) -> bytes:
        return strictjson.dumps(
            {"authority": str(self.authority), "sequence": self.sequence, "keys": [str(key) for key in self.keys]}
        )

    def seal(self, key: SigningKey) -> Envelope:
        return Envelope.seal(PAYLOAD_TYPE, self.encode(), key)

    @classmethod
    def open(cls, envelope: Envelope) -> RevocationList:
        """The list, once the authority that it names has signed these very bytes.

        Raises:
            MalformedError: `json.*`, `revocation.*`, `key.*`.
            TrustError: `trust.payload_type`, `trust.untrusted_signer`.
        """
        found = _read(envelope.payload)
        envelope.verify(PAYLOAD_TYPE, {found.authority})
        return found


def _read(payload: bytes) -> RevocationList:
    found = strictjson.loads(payload, limit=MAX_REVOCATION_BYTES, what="the revocation list")
    fields = strictjson.Fields(found, "revocation")
    revoked = RevocationList(
        PublicKey.parse(fields.take("authority")),
        fields.integer("sequence", 1, strictjson.MAX_SAFE_INTEGER),
        tuple(PublicKey.parse(key) for key in fields.array("keys", limit=MAX_LIST_ENTRIES)),
    )
    fields.done()
    return revoked
