"""Who plays: a signer the victim trusts, a second one, and a stranger who holds a key of his own."""

from __future__ import annotations

from kvsync_protocol.signing import SigningKey

SIGNER = SigningKey(b"signer's seed of 32 bytes.......")
SECOND = SigningKey(b"the second signer's seed, 32 b..")
STRANGER = SigningKey(b"a stranger's seed of 32 bytes...")
EVERYBODY = frozenset(key.public for key in (SIGNER, SECOND, STRANGER))
