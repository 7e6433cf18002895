"""Whose signatures an envelope holds: key ids save work and decide nothing."""

from __future__ import annotations

import pytest

from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.signing import PublicKey, SigningKey

KEYS = [SigningKey(number.to_bytes(32, "big")) for number in range(1, 301)]
TRUSTED = [key.public for key in KEYS]


def test_a_named_signer_among_many_keys_costs_one_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    envelope = Envelope.seal("text/plain", b"x", KEYS[200])
    tried = []
    verify = PublicKey.verify
    monkeypatch.setattr(PublicKey, "verify", lambda key, *given: tried.append(key) or verify(key, *given))
    assert envelope.signers(TRUSTED) == (KEYS[200].public,)
    assert tried == [KEYS[200].public]


@pytest.mark.parametrize("claimed", ["", "nobody", KEYS[7].public.key_id])
def test_a_signature_counts_for_its_key_whatever_it_claims(claimed: str) -> None:
    envelope = Envelope.seal("text/plain", b"x", KEYS[200], KEYS[3])
    disguised = [Signature(claimed, signature.signature) for signature in envelope.signatures]
    junk = [Signature(KEYS[200].public.key_id, bytes(64)), Signature(claimed, b"short")]
    found = Envelope("text/plain", b"x", (*junk, *disguised)).signers(TRUSTED)
    assert found == tuple(sorted([KEYS[3].public, KEYS[200].public]))


def test_one_key_that_signed_twice_is_one_signer() -> None:
    envelope = Envelope.seal("text/plain", b"x", KEYS[0], KEYS[0])
    assert envelope.signers([*TRUSTED, KEYS[0].public]) == (KEYS[0].public,)
