"""Arbitrary bytes into every parser: a value or a ProtocolError, nothing else, and in bounded work."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol import strictjson
from kvsync_protocol.attestation import PAYLOAD_TYPE as ATTESTATION_TYPE
from kvsync_protocol.attestation import Attestation
from kvsync_protocol.bulk import BulkReply, BulkRequest
from kvsync_protocol.digest import Digest
from kvsync_protocol.divergence import Divergence
from kvsync_protocol.entry import PAYLOAD_TYPE as ENTRY_TYPE
from kvsync_protocol.entry import Entry
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, ProtocolError, TrustError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind
from kvsync_protocol.groups import parse_group
from kvsync_protocol.have import Have
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.library import PAYLOAD_TYPE as LIBRARY_TYPE
from kvsync_protocol.library import LibraryList
from kvsync_protocol.limits import MAX_JSON_BYTES, MAX_MANIFEST_BYTES, MiB
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.merkle import verify_consistency, verify_inclusion
from kvsync_protocol.messages import Accepted, Attestations, Commit, ErrorReply, Hello, Missing, RefList, Related
from kvsync_protocol.passage import PAYLOAD_TYPE as PASSAGE_TYPE
from kvsync_protocol.passage import Passage
from kvsync_protocol.prefix import decode_tokens
from kvsync_protocol.ref import PAYLOAD_TYPE as REF_TYPE
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import PublicKey
from kvsync_protocol.unencrypted import Seals, Side
from tests.protocol.strategies import KEYS, artifacts_described, digests, few

BYTE_PARSERS: dict[str, Callable[[bytes], object]] = {
    "json": lambda data: strictjson.loads(data, limit=MAX_JSON_BYTES, what="it"),
    "envelope": Envelope.parse,
    "manifest": lambda data: Manifest.parse(VerifiedPayload(PAYLOAD_TYPE, data, ())),
    "ref": lambda data: Ref.parse(VerifiedPayload(REF_TYPE, data, ())),
    "leaf table": LeafTable.parse,
    "token ids": decode_tokens,
    "hello": Hello.parse,
    "refs": RefList.parse,
    "missing": lambda data: Missing.parse(data, leaves=100),
    "have": lambda data: Have.parse(data, leaves=100),
    "commit": Commit.parse,
    "accepted": Accepted.parse,
    "error": ErrorReply.parse,
    "attestation": lambda data: Attestation.parse(VerifiedPayload(ATTESTATION_TYPE, data, ())),
    "divergence": lambda data: Divergence.parse(data).check(),
    "attestations": Attestations.parse,
    "related": Related.parse,
    "entry": lambda data: Entry.parse(VerifiedPayload(ENTRY_TYPE, data, ())),
    "passage": lambda data: Passage.parse(VerifiedPayload(PASSAGE_TYPE, data, ())),
    "library": lambda data: LibraryList.parse(VerifiedPayload(LIBRARY_TYPE, data, ())),
    "bulk request": BulkRequest.decode,
    "bulk reply": BulkReply.decode,
    "sealed message": lambda data: Seals(bytes(32), Side.SERVING).check(data[:-32], data[-32:]),
}
VALUE_PARSERS: dict[str, Callable[[Any], object]] = {
    "digest": Digest.parse,
    "key": PublicKey.parse,
    "group": parse_group,
    "fingerprint": lambda value: Fingerprint.parse(FingerprintKind.NUMERICS, value),
}
WORDS = [
    *("_type", "subject", "predicateType", "predicate", "format", "tokens", "count", "schedule", "block_tokens"),
    *("boundaries", "groups", "name", "kind", "layers", "kv_heads", "key_dim", "value_dim", "dtype", "window"),
    *("payload", "payloadType", "signatures", "keyid", "sig", "refs", "more", "ranges", "ref", "artifact"),
    *("complete", "code", "message", "hint", "protocol", "software", "signers", "roles", "sequence", "expires"),
    *("blocks", "logits", "differs", "leaf", "found", "sides", "leaves", "proof", "digest", "size", "block"),
    *("full", "sliding", "F32", "\\ud800", "\ud800", "\x1b", "", "sha256:" + "00" * 32),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(WORDS) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=20,
)
NOT_QUITE_JSON = JSON.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


@pytest.mark.parametrize("name", BYTE_PARSERS)
@given(data=st.binary(max_size=200) | NOT_QUITE_JSON | JSON.map(lambda value: json.dumps(value).encode()))
def test_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    try:
        BYTE_PARSERS[name](data)
    except ProtocolError as error:
        json.dumps(error.as_dict()).encode()  # and it can be reported


@pytest.mark.parametrize("name", VALUE_PARSERS)
@given(value=JSON)
def test_values_are_read_or_refused(name: str, value: object) -> None:
    try:
        VALUE_PARSERS[name](value)
    except ProtocolError as error:
        json.dumps(error.as_dict()).encode()


@given(
    st.integers(-(2**65), 2**65),
    st.integers(-(2**65), 2**65),
    st.lists(digests, max_size=70),
    digests,
    digests,
)
def test_random_proofs_are_refused(
    one: int, other: int, proof: list[Digest], root: Digest, second_root: Digest
) -> None:
    with pytest.raises(ProtocolError):
        verify_inclusion(root, one, other, [*proof, root], second_root)
    with pytest.raises(ProtocolError):
        verify_consistency(one, other, root, second_root, [*proof, root])


@few
@given(artifacts_described(), st.data())
def test_one_changed_member_makes_a_manifest_another_or_none(
    made: tuple[Manifest, bytes, bytes], data: st.DataObject
) -> None:
    manifest = made[0]
    value = json.loads(manifest.encode())
    place: Any = value
    while isinstance(place, dict | list) and place:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = data.draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], dict | list) or data.draw(st.booleans()):
            break
        place = place[key]
    if not place:
        return
    before = json.dumps(place[key])
    place[key] = data.draw(JSON)
    try:
        found = Manifest.parse(VerifiedPayload(PAYLOAD_TYPE, strictjson.dumps(value), ()))
    except (ProtocolError, ValueError):
        return
    assert (found == manifest) == (json.dumps(place[key]) == before)


@few
@given(artifacts_described(), st.integers(0), st.integers(1, 255))
def test_one_changed_byte_leaves_the_signed_payload_or_nothing(
    made: tuple[Manifest, bytes, bytes], at: int, change: int
) -> None:
    manifest = made[0]
    sealed = bytearray(manifest.seal(KEYS[0]).encode())
    sealed[at % len(sealed)] ^= change
    try:
        found = Manifest.parse(Envelope.parse(bytes(sealed)).verify(PAYLOAD_TYPE, [KEYS[0].public]))
    except ProtocolError:
        return
    assert found == manifest


@few
@given(artifacts_described(), st.integers(0), st.integers(1, 255))
def test_one_changed_byte_of_the_payload_never_verifies(
    made: tuple[Manifest, bytes, bytes], at: int, change: int
) -> None:
    sealed = made[0].seal(KEYS[0])
    payload = bytearray(sealed.payload)
    payload[at % len(payload)] ^= change
    with pytest.raises(TrustError):
        Envelope(sealed.payload_type, bytes(payload), sealed.signatures).verify(PAYLOAD_TYPE, [KEYS[0].public])


@few
@given(artifacts_described(), st.integers(0), st.integers(1, 255))
def test_one_changed_byte_of_a_table_is_noticed(made: tuple[Manifest, bytes, bytes], at: int, change: int) -> None:
    manifest, table, ids = (made[0], bytearray(made[1]), bytearray(made[2]))
    table[at % len(table)] ^= change
    ids[at % len(ids)] ^= change
    with pytest.raises(ProtocolError):
        manifest.check_leaves(bytes(table))
    with pytest.raises(ProtocolError):
        manifest.check_tokens(bytes(ids))


def fill(head: str, unit: str, tail: str, size: int = MAX_JSON_BYTES) -> bytes:
    return (head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail).encode()


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("brackets", fill("{", "[", ""), "json.depth"),
        ("objects", fill("", '{"":', ""), "json.depth"),
        ("brackets in text", fill('{"a":"', "[", '"}'), None),
        ("escaped quotes", fill('{"a":"', '\\"', '"}'), None),
        ("escaped quotes without an end", fill('{"a":"', '\\"', ""), "json.syntax"),
        ("backslashes", fill('{"a":"', "\\\\", '"}'), None),
        ("surrogate pairs", fill('{"a":"', "\\ud83d\\ude00", '"}'), None),
        ("digits", fill('{"a":', "9", "}"), "json.number"),
        ("empty arrays", fill('{"a":[', "[],", "[]]}"), None),
        ("white space", fill("{", " ", "}"), None),
        ("one byte too many", fill("{", " ", "}", MAX_JSON_BYTES + 1), "json.size"),
    ],
)
def test_two_mebibytes_of_one_thing_are_read_or_refused(name: str, data: bytes, code: str | None) -> None:
    if code is None:
        strictjson.loads(data, limit=MAX_JSON_BYTES, what=name)
    else:
        with pytest.raises(MalformedError) as caught:
            strictjson.loads(data, limit=MAX_JSON_BYTES, what=name)
        assert caught.value.code == code


def test_a_duplicate_among_many_keys_is_found_without_comparing_all_pairs() -> None:
    members = ",".join(f'"{number}":0' for number in range(150_000))
    with pytest.raises(MalformedError) as caught:
        strictjson.loads(b'{%s,"149999":0}' % members.encode(), limit=MAX_JSON_BYTES, what="it")
    assert caught.value.code == "json.duplicate_key"


def test_a_peers_long_key_does_not_fill_the_message() -> None:
    name = "\x1b[2J" + "x" * 100_000
    text = json.dumps(name)
    with pytest.raises(MalformedError) as caught:
        strictjson.loads(f"{{{text}:0,{text}:0}}".encode(), limit=MAX_JSON_BYTES, what="it")
    assert len(json.dumps(caught.value.as_dict())) < 300
    assert "\x1b" not in caught.value.message


def test_a_payload_over_its_limit_is_refused_in_the_envelope_and_in_the_manifest() -> None:
    payload = b" " * (MAX_MANIFEST_BYTES + 1)
    envelope = {"payload": base64.b64encode(payload).decode(), "payloadType": "a", "signatures": [{"sig": "QQ=="}]}
    with pytest.raises(MalformedError) as caught:
        Envelope.parse(json.dumps(envelope).encode())
    assert caught.value.code == "envelope.range"
    with pytest.raises(MalformedError) as caught:
        Manifest.parse(VerifiedPayload(PAYLOAD_TYPE, payload, ()))
    assert caught.value.code == "json.size"


def test_a_leaf_table_over_its_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(MalformedError) as caught:
        LeafTable.parse(bytes(40 * (MiB + 1)))
    assert caught.value.code == "leaves.length"
