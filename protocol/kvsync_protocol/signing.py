"""Ed25519 keys and signatures. Knows bytes; what is signed and who is trusted is decided elsewhere."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from kvsync_protocol.errors import MalformedError

_WEAK = frozenset(
    int(text, 16).to_bytes(32, "little")
    for text in (
        "00",
        "01",
        "7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffec",
        "7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffed",
        "7fffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffee",
        "05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826",
        "7a03ac9277fdc74ec6cc392cfa53202a0f67100d760b3cba4fd84d3d706a17c7",
    )
)
"""Points of small order, as y without the sign of x: under such a key anyone can sign anything."""
SIGNATURE_BYTES = 64
_TEXT = re.compile(r"ed25519:([A-Za-z0-9_-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class PublicKey:
    """An Ed25519 public key, 32 bytes; the identity of a signer or a peer.

    `PublicKey.parse(str(k)) == k`. The text form is `ed25519:` and 43 url-safe base64 characters.

    Raises:
        MalformedError: `key.length`, or `key.weak` for a point of small order.
    """

    raw: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.raw, bytes) or len(self.raw) != 32:
            raise MalformedError("key.length", "an Ed25519 public key has 32 bytes")
        if self.raw[:31] + bytes([self.raw[31] & 0x7F]) in _WEAK:
            raise MalformedError("key.weak", "not a public key: its signatures would prove nothing")

    @classmethod
    def parse(cls, text: object) -> PublicKey:
        """Raises MalformedError `key.syntax`, `key.weak`."""
        found = _TEXT.fullmatch(text) if isinstance(text, str) else None
        raw = base64.urlsafe_b64decode(found.group(1) + "=") if found else b""
        if found is None or _encode(raw) != found.group(1):
            raise MalformedError("key.syntax", "not a public key", hint="expected ed25519: and 43 characters")
        return cls(raw)

    @property
    def key_id(self) -> str:
        """A short hint for looking keys up; never trusted (SPEC 5.2)."""
        return hashlib.sha256(b"kvsync/key/1" + self.raw).hexdigest()[:16]

    def verify(self, message: bytes, signature: bytes) -> bool:
        """True when `signature` is this key's over `message`."""
        if len(signature) != SIGNATURE_BYTES:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    def __str__(self) -> str:
        return f"ed25519:{_encode(self.raw)}"


def _encode(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


class SigningKey:
    """An Ed25519 private key. Its seed never appears in `repr` or errors."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != 32:
            raise MalformedError("key.length", "an Ed25519 seed has 32 bytes")
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = PublicKey(self._key.public_key().public_bytes_raw())

    @classmethod
    def generate(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    @property
    def seed(self) -> bytes:
        """The 32 secret bytes, for the key file only."""
        return self._key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """A 64-byte signature, deterministic for key and message."""
        return self._key.sign(message)
