"""What a node says about keys at every contact: successors and revocation lists, as signed (KEYS 3).

The digest lets two nodes see that they hold the same without sending it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest, hash_record
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.limits import MAX_JSON_BYTES, MAX_LIST_ENTRIES


@dataclass(frozen=True, slots=True)
class KeyStatements:
    """Envelopes, nothing in them verified yet. `KeyStatements.parse(k.encode()) == k`."""

    successors: tuple[Envelope, ...] = ()
    revocations: tuple[Envelope, ...] = ()

    @property
    def digest(self) -> Digest:
        """Of what is said, whatever the order and the signatures' form."""
        payloads = sorted({envelope.payload for envelope in (*self.successors, *self.revocations)})
        return hash_record("kvsync/statements/1", payloads)

    def encode(self) -> bytes:
        return strictjson.dumps({"successors": _texts(self.successors), "revocations": _texts(self.revocations)})

    @classmethod
    def parse(cls, data: bytes) -> KeyStatements:
        """Raises MalformedError `json.*`, `message.*`, `envelope.*`."""
        fields = strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what="the statements"), "message")
        successors, revocations = (
            fields.strings(name, limit=MAX_LIST_ENTRIES, each=MAX_JSON_BYTES)
            for name in ("successors", "revocations")
        )
        fields.done()
        return cls(_envelopes(successors), _envelopes(revocations))


def _texts(envelopes: Iterable[Envelope]) -> list[str]:
    return [envelope.encode().decode() for envelope in envelopes]


def _envelopes(texts: Iterable[str]) -> tuple[Envelope, ...]:
    return tuple(Envelope.parse(text.encode()) for text in texts)
