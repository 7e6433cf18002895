"""Joining: the one exchange on the join lane, in which a ticket is spent (KEYS 5).

    frame    length u32 BE ‖ JSON of that length
    request  an envelope: a JoinRequest signed by the key that the ticket's secret gives
    answer   {"error": null, "answer": …} or {"error": …, "answer": null}

The request names both peer keys, and both sides compare them with the keys of their TLS session: a request that
somebody else has seen or relayed is of no use to him.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.limits import MAX_MESSAGE_BYTES, MAX_NAME_CHARS, MAX_ROLES, KiB
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import PublicKey, SigningKey

ALPN: Final = "kvsync-join/1"
PAYLOAD_TYPE: Final = "application/vnd.kvsync.join+json"
MAX_JOIN_BYTES: Final = 256 * KiB
MAX_PAIRS: Final = 4
"""Pairs of fingerprints that a side may show."""
_ADDRESSES: Final = 16
ANCHOR_SEED: Final = bytes(32)
"""The private key, known to everybody, that signs the certificates of the join lane: a TLS server must name an
authority for the keys that it lets in, and here any key may come."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a node says of itself: how it likes to be called, whose signature is its own, where it listens.

    `fingerprints` are those of what it has computed, for the other side to compare with.
    """

    name: str
    signer: PublicKey
    addresses: tuple[str, ...] = ()
    fingerprints: tuple[Fingerprints, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "signer": str(self.signer),
            "addresses": list(self.addresses),
            "fingerprints": [
                {"compatibility": pair.compatibility.as_json(), "numerics": pair.numerics.as_json()}
                for pair in self.fingerprints
            ],
        }

    @classmethod
    def parse(cls, value: object) -> Introduction:
        """Raises MalformedError `message.*`, `ref.name`, `key.*`, `fingerprint.fields`."""
        fields = strictjson.Fields(value, "message")
        found = cls(
            check_name(fields.string("name", limit=4 * MAX_NAME_CHARS)),
            PublicKey.parse(fields.take("signer")),
            fields.strings("addresses", limit=_ADDRESSES, each=300),
            tuple(_pair(entry) for entry in fields.array("fingerprints", limit=MAX_PAIRS)),
        )
        fields.done()
        return found


def _pair(value: object) -> Fingerprints:
    fields = strictjson.Fields(value, "message")
    pair = Fingerprints(
        Fingerprint.parse(FingerprintKind.COMPATIBILITY, fields.take("compatibility")),
        Fingerprint.parse(FingerprintKind.NUMERICS, fields.take("numerics")),
    )
    fields.done()
    return pair


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """`JoinRequest.open(r.seal(ticket.key), {ticket.key.public}) == (r, ticket.key.public)`."""

    inviter: PublicKey
    joiner: PublicKey
    about: Introduction

    def seal(self, key: SigningKey) -> Envelope:
        payload = {"inviter": str(self.inviter), "joiner": str(self.joiner), "about": self.about.as_json()}
        return Envelope.seal(PAYLOAD_TYPE, strictjson.dumps(payload), key)

    @classmethod
    def open(cls, envelope: Envelope, keys: Collection[PublicKey]) -> tuple[JoinRequest, PublicKey]:
        """The request, and which of `keys` has signed it.

        Raises:
            TrustError: `trust.payload_type`, `trust.untrusted_signer`.
            MalformedError: `json.*`, `message.*`, `key.*`.
        """
        verified = envelope.verify(PAYLOAD_TYPE, keys)
        found = strictjson.loads(verified.payload, limit=MAX_JOIN_BYTES, what="the request to join")
        fields = strictjson.Fields(found, "message")
        request = cls(
            PublicKey.parse(fields.take("inviter")),
            PublicKey.parse(fields.take("joiner")),
            Introduction.parse(fields.take("about")),
        )
        fields.done()
        return request, verified.signers[0]


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """`roles` is what the joiner may do there. `JoinAnswer.parse(a.encode()) == a`."""

    about: Introduction
    roles: tuple[str, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"answer": {"about": self.about.as_json(), "roles": list(self.roles)}, "error": None})

    @classmethod
    def parse(cls, data: bytes) -> JoinAnswer | ErrorReply:
        """Raises MalformedError `json.*`, `message.*`."""
        fields = strictjson.Fields(
            strictjson.loads(data, limit=MAX_JOIN_BYTES, what="the answer to a request to join"), "message"
        )
        error = fields.optional("error", lambda name: fields.string(name, limit=8 * MAX_MESSAGE_BYTES))
        if error is not None:
            fields.optional("answer", fields.mapping)
            fields.done()
            return ErrorReply.parse(error.encode())
        answer = strictjson.Fields(fields.mapping("answer"), "message")
        fields.done()
        found = cls(Introduction.parse(answer.take("about")), answer.strings("roles", limit=MAX_ROLES, each=64))
        answer.done()
        return found


def refusal(error: ErrorReply) -> bytes:
    """An error as the join lane answers it."""
    return strictjson.dumps({"answer": None, "error": error.encode().decode()})
