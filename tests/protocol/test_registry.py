"""A registry's statements and messages: what is written is read as the same value, and other bytes are refused."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.announcement import (
    ANNOUNCEMENT_TYPE,
    CONTACT_TYPE,
    WITHDRAWAL_TYPE,
    Announcement,
    Contact,
    Moment,
    Statement,
    Withdrawal,
    parse_statement,
)
from kvsync_protocol.digest import PrefixKey
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.reader import MEMBERS, PLACE_BYTES, artifact_place, block_places, name_place, tenant
from kvsync_protocol.registry_messages import (
    Addresses,
    Envelopes,
    Match,
    Matches,
    Outcomes,
    PrefixQuery,
    Provider,
    Vouched,
)
from tests.protocol.strategies import KEYS, artifacts, digests, public_keys, texts
from tests.protocol.test_codecs import ENVELOPES, NAMES
from tests.protocol.test_hostile import NOT_QUITE_JSON

NUMBERS = st.integers(1, 2**53 - 1)
MOMENTS = st.builds(Moment, NUMBERS, NUMBERS)
PREFIX_KEYS = digests.map(PrefixKey)
READERS = (st.just(MEMBERS) | NAMES.map(tenant) | public_keys.map(str)).filter(lambda text: len(text) <= 207)
READER_LISTS = st.sets(READERS, min_size=1, max_size=5).map(lambda found: tuple(sorted(found)))
ADDRESSES = st.lists(texts, max_size=4).map(tuple)
STATEMENTS: st.SearchStrategy[Statement] = st.one_of(
    st.builds(
        Announcement,
        MOMENTS,
        artifacts,
        digests,
        digests,
        st.lists(PREFIX_KEYS, max_size=4).map(tuple),
        NUMBERS,
        READER_LISTS,
        NUMBERS,
    ),
    st.builds(Withdrawal, MOMENTS, st.none() | artifacts),
    st.builds(Contact, MOMENTS, ADDRESSES, NUMBERS),
)
PROVIDERS = st.builds(Provider, public_keys, ADDRESSES)
MATCHES = st.builds(
    Match,
    artifacts,
    digests,
    digests,
    st.integers(0, 8192),
    NUMBERS,
    st.lists(PROVIDERS, max_size=3).map(tuple),
)
CODES = st.sampled_from(["ok", "registry.stale", "registry.full", "trust.untrusted_signer"])
SIGNERS = st.lists(public_keys, min_size=1, max_size=3, unique=True).map(tuple)
VALUES: list[st.SearchStrategy[object]] = [
    st.builds(Envelopes, st.lists(ENVELOPES, max_size=3).map(tuple)),
    st.builds(Outcomes, st.integers(0, 2**53 - 1), st.lists(CODES, max_size=5).map(tuple)),
    st.builds(PrefixQuery, st.lists(PREFIX_KEYS, min_size=1, max_size=5).map(tuple)),
    st.builds(Matches, st.integers(0, 4096), st.lists(MATCHES, max_size=3).map(tuple)),
    st.builds(Vouched, SIGNERS, ENVELOPES, st.just(()) | READER_LISTS),
    st.builds(Addresses, ADDRESSES),
]
PARSERS: dict[str, Callable[[bytes], object]] = {
    **{kind.__name__: kind.parse for kind in (Envelopes, Outcomes, PrefixQuery, Matches, Vouched, Addresses)},
    **{
        kind: lambda data, kind=kind: parse_statement(VerifiedPayload(kind, data, ()))  # type: ignore[misc]
        for kind in (ANNOUNCEMENT_TYPE, WITHDRAWAL_TYPE, CONTACT_TYPE)
    },
}


@given(STATEMENTS)
def test_a_statement_survives_its_envelope(statement: Statement) -> None:
    sealed = Envelope.parse(statement.seal(KEYS[0]).encode())
    assert parse_statement(sealed.verify(sealed.payload_type, [KEYS[0].public])) == statement


@given(st.one_of(VALUES))
def test_a_message_survives(value: object) -> None:
    assert type(value).parse(value.encode()) == value  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.binary(max_size=200) | NOT_QUITE_JSON)
def test_bytes_are_read_or_refused(name: str, data: bytes) -> None:
    try:
        PARSERS[name](data)
    except ProtocolError as error:
        json.dumps(error.as_dict()).encode()


@given(STATEMENTS, st.integers(0), st.integers(1, 255))
def test_one_changed_byte_leaves_the_signed_statement_or_nothing(statement: Statement, at: int, change: int) -> None:
    sealed = bytearray(statement.seal(KEYS[0]).encode())
    sealed[at % len(sealed)] ^= change
    try:
        envelope = Envelope.parse(bytes(sealed))
        found = parse_statement(envelope.verify(envelope.payload_type, [KEYS[0].public]))
    except ProtocolError:
        return
    assert found == statement


@given(READERS, READERS, PREFIX_KEYS, PREFIX_KEYS)
def test_places_differ_unless_reader_kind_and_key_are_the_same(
    reader: str, other: str, key: PrefixKey, second: PrefixKey
) -> None:
    both = block_places(reader, [key, second])
    assert both == block_places(reader, [key]) + block_places(reader, [second])
    assert (both[:PLACE_BYTES] == both[PLACE_BYTES:]) == (key == second)
    assert (block_places(reader, [key]) == block_places(other, [key])) == (reader == other)
    assert len({block_places(reader, [key]), artifact_place(reader, key), name_place(reader)}) == 3  # type: ignore[arg-type]
