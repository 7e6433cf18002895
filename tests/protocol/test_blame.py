"""Blame records: both halves of the codec, and arbitrary bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.blame import Blame
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.limits import MAX_LEAVES
from kvsync_protocol.signing import SigningKey

OWN, PEER = SigningKey(b"o" * 32), SigningKey(b"p" * 32)
DIGESTS = st.binary(min_size=32, max_size=32).map(Digest)
RECORDS = st.builds(
    Blame,
    st.just(PEER.public),
    DIGESTS.map(ArtifactId),
    st.integers(0, MAX_LEAVES - 1),
    st.sampled_from(["integrity.chunk", "bulk.size", "codec.frame"]),
    st.none() | DIGESTS,
    st.integers(0, 2**53 - 1),
)


@given(RECORDS)
def test_what_was_sealed_is_opened_by_its_signer_only(blame: Blame) -> None:
    envelope = Envelope.parse(blame.seal(OWN).encode())
    assert Blame.open(envelope, {OWN.public}) == blame
    with pytest.raises(ProtocolError):
        Blame.open(envelope, {PEER.public})


@given(st.one_of(st.binary(max_size=400), RECORDS.map(Blame.encode)), st.integers(0, 500), st.integers(0, 255))
def test_arbitrary_bytes_are_a_record_or_a_protocol_error(data: bytes, place: int, value: int) -> None:
    changed = bytearray(data)
    if changed:
        changed[place % len(changed)] = value
    try:
        found = Blame.parse(bytes(changed))
    except ProtocolError:
        return
    assert Blame.parse(found.encode()) == found


@pytest.mark.parametrize("code", ["", "wrong", "It was.wrong", "a.b.c", "a." + "b" * 100])
def test_what_was_wrong_is_told_by_a_code(code: str) -> None:
    with pytest.raises(MalformedError) as caught:
        Blame(PEER.public, ArtifactId(Digest(bytes(32))), 0, code, None, 0)
    assert caught.value.code == "blame.code"
