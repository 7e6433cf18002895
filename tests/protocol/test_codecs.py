"""Round trips: what a writer writes, the reader of the same codec reads as the same value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol import strictjson
from kvsync_protocol.bulk import MAX_WIRE_BYTES, BulkReply, BulkRequest, Encoding, Status, Verb
from kvsync_protocol.digest import ArtifactId, Digest, hash_record
from kvsync_protocol.envelope import Envelope, Signature, VerifiedPayload
from kvsync_protocol.errors import CodedError, IntegrityError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind
from kvsync_protocol.groups import AnyGroup, parse_group
from kvsync_protocol.have import Have
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import MAX_CHUNK_BYTES
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.messages import Accepted, Commit, ErrorReply, Hello, Missing, RefList
from kvsync_protocol.prefix import decode_tokens, encode_tokens
from kvsync_protocol.ref import PAYLOAD_TYPE as REF_TYPE
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_protocol.unencrypted import KEY_BYTES, Seals, Side
from tests.protocol.strategies import (
    KEYS,
    artifacts,
    artifacts_described,
    digests,
    few,
    fingerprints,
    group_lists,
    public_keys,
    texts,
)

SAFE = st.integers(-strictjson.MAX_SAFE_INTEGER, strictjson.MAX_SAFE_INTEGER)
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | SAFE | UNICODE,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(UNICODE, inner, max_size=4),
    max_leaves=12,
)
ENVELOPES = st.builds(
    Envelope,
    texts,
    st.binary(max_size=60),
    st.lists(st.builds(Signature, texts, st.binary(min_size=1, max_size=99)), min_size=1, max_size=16).map(tuple),
)
CONNECTION_KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES)
NAMES = st.from_regex(r"[a-z0-9](?:[._-]?[a-z0-9]){0,9}(?:/[a-z0-9]{1,9}){0,3}", fullmatch=True)


@given(digests)
def test_a_digest_survives_its_text(digest: Digest) -> None:
    assert Digest.parse(str(digest)) == Digest.parse(digest.hex) == digest


@given(st.binary(min_size=32, max_size=32))
def test_a_key_survives_its_text_and_its_seed_stays_out_of_repr(seed: bytes) -> None:
    key = SigningKey(seed)
    assert PublicKey.parse(str(key.public)) == key.public
    assert SigningKey(key.seed).public == key.public
    assert seed.hex() not in repr(key)


@given(st.dictionaries(UNICODE, VALUES, max_size=5))
def test_json_survives(value: dict[str, object]) -> None:
    data = strictjson.dumps(value)
    assert strictjson.loads(data, limit=len(data), what="it") == value
    assert json.loads(data) == value


@given(st.lists(st.binary(max_size=9), max_size=5), st.lists(st.binary(max_size=9), max_size=5))
def test_records_of_different_items_differ(one: list[bytes], other: list[bytes]) -> None:
    assert (hash_record("t", one) == hash_record("t", other)) == (one == other)


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50))
def test_token_ids_survive(tokens: list[int]) -> None:
    assert decode_tokens(encode_tokens(tokens)) == tuple(tokens)


@given(group_lists())
def test_groups_survive(groups: tuple[AnyGroup, ...]) -> None:
    assert tuple(parse_group(group.as_json()) for group in groups) == groups


@given(fingerprints(FingerprintKind.NUMERICS))
def test_a_fingerprint_survives_and_its_kind_is_part_of_the_digest(numerics: Fingerprint) -> None:
    assert Fingerprint.parse(FingerprintKind.NUMERICS, numerics.as_json()) == numerics
    assert Fingerprint(FingerprintKind.COMPATIBILITY, numerics.fields).digest != numerics.digest


@given(ENVELOPES)
def test_an_envelope_survives(envelope: Envelope) -> None:
    assert Envelope.parse(envelope.encode()) == envelope


@few
@given(artifacts_described())
def test_a_manifest_survives_in_both_directions_with_its_tables(made: tuple[Manifest, bytes, bytes]) -> None:
    manifest, table, ids = made
    verified = manifest.seal(KEYS[0]).verify(PAYLOAD_TYPE, [KEYS[0].public])
    found = Manifest.parse(verified)
    assert found == manifest
    assert found.encode() == verified.payload
    assert found.artifact == manifest.artifact
    assert found.check_leaves(table) == LeafTable.parse(table)
    assert encode_tokens(found.check_tokens(ids)) == ids


@given(st.lists(st.builds(Leaf, digests, st.integers(1, MAX_CHUNK_BYTES)), min_size=1, max_size=20))
def test_a_leaf_table_survives(leaves: list[Leaf]) -> None:
    table = LeafTable.of(leaves)
    assert LeafTable.parse(table.encode()) == table


@given(NAMES, artifacts, st.integers(1, 2**53 - 1), st.none() | st.integers(1, 2**53 - 1))
def test_a_ref_survives(name: str, artifact: ArtifactId, sequence: int, expires: int | None) -> None:
    ref = Ref(name, artifact, sequence, expires)
    assert Ref.parse(ref.seal(KEYS[0]).verify(REF_TYPE, [KEYS[0].public])) == ref
    assert Ref.parse(VerifiedPayload(REF_TYPE, ref.encode(), ())) == ref


@given(
    texts,
    st.lists(public_keys, max_size=4),
    st.lists(texts.filter(lambda text: len(text.encode()) <= 64), max_size=4),
)
def test_a_hello_survives(software: str, signers: list[PublicKey], roles: list[str]) -> None:
    hello = Hello(software, tuple(signers), tuple(roles))
    assert Hello.parse(hello.encode()) == hello


@given(st.lists(ENVELOPES, max_size=3), st.booleans())
def test_a_list_of_refs_survives(refs: list[Envelope], more: bool) -> None:
    page = RefList(tuple(refs), more)
    assert RefList.parse(page.encode()) == page


@given(st.sets(st.integers(0, 200)))
def test_missing_leaves_survive(indices: set[int]) -> None:
    missing = Missing.of(sorted(indices))
    assert list(missing.indices()) == sorted(indices)
    assert Missing.parse(missing.encode(), leaves=201) == missing


@given(st.integers(1, 70).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))))
def test_what_a_provider_has_survives(case: tuple[int, set[int]]) -> None:
    leaves, indices = case
    have = Have.of(indices, leaves)
    assert list(have.indices()) == sorted(indices)
    assert [index for index in range(-1, leaves + 9) if index in have] == sorted(indices)
    assert (have.bitmap is None) == (len(indices) == leaves)
    assert Have.parse(have.encode(), leaves=leaves) == have


@given(st.none() | ENVELOPES)
def test_a_commit_survives(ref: Envelope | None) -> None:
    assert Commit.parse(Commit(ref).encode()) == Commit(ref)


@given(artifacts, st.booleans())
def test_an_acceptance_survives(artifact: ArtifactId, complete: bool) -> None:
    accepted = Accepted(artifact, complete)
    assert Accepted.parse(accepted.encode()) == accepted


@given(st.text(max_size=3000), st.text(max_size=3000))
def test_an_error_survives_whatever_its_text(message: str, hint: str) -> None:
    reply = ErrorReply.of(CodedError("store.full", message, hint=hint))
    assert ErrorReply.parse(reply.encode()) == reply


@given(st.sampled_from(Verb), artifacts, st.integers(0, 2**32 - 1), st.sampled_from(Encoding), st.data())
def test_a_bulk_request_survives(
    verb: Verb, artifact: ArtifactId, index: int, encoding: Encoding, data: st.DataObject
) -> None:
    length = 0 if verb is Verb.GET else data.draw(st.integers(1, MAX_WIRE_BYTES))
    request = BulkRequest(verb, artifact, index, encoding, length)
    assert BulkRequest.decode(request.encode()) == request


@given(st.sampled_from(Status), st.sampled_from(Encoding), st.integers(0, MAX_WIRE_BYTES))
def test_a_bulk_reply_survives(status: Status, encoding: Encoding, length: int) -> None:
    reply = BulkReply(status, encoding, length if status is Status.OK else 0)
    assert BulkReply.decode(reply.encode()) == reply


@given(CONNECTION_KEYS, st.sampled_from(Side), st.lists(st.binary(max_size=100), max_size=5))
def test_sealed_messages_are_believed_in_their_order(key: bytes, side: Side, messages: list[bytes]) -> None:
    sender, reader = Seals(key, side), Seals(key, side)
    for message in messages:
        reader.check(message, sender.next(message))


@given(CONNECTION_KEYS, st.sampled_from(Side), st.lists(st.binary(max_size=100), min_size=1, max_size=5), st.data())
def test_a_message_is_believed_from_its_sender_at_its_place_as_it_was_and_not_otherwise(
    key: bytes, side: Side, messages: list[bytes], data: st.DataObject
) -> None:
    sender = Seals(key, side)
    sealed = [(message, sender.next(message)) for message in messages]
    place, of = data.draw(st.integers(0, len(sealed) - 1)), data.draw(st.integers(0, len(sealed) - 1))
    message, seal = sealed[of]
    message = data.draw(st.sampled_from([message, message + b"\0", message[:-1]]) | st.binary(max_size=100))
    seal = data.draw(st.sampled_from([seal, seal[:-1], b"", seal[:-1] + bytes([seal[-1] ^ 1])]))
    who, under = data.draw(st.sampled_from(Side)), data.draw(st.sampled_from([key]) | CONNECTION_KEYS)
    reader = Seals(under, who)
    for _ in range(place):
        reader.next(b"")
    if (message, seal, who, under, place) == (messages[of], sealed[of][1], side, key, of):
        reader.check(message, seal)
        return
    with pytest.raises(IntegrityError) as caught:
        reader.check(message, seal)
    assert caught.value.code == "bulk.seal"
