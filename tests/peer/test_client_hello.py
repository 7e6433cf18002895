"""The ClientHello reader: real hellos, every cut and flip of one, and arbitrary bytes."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.peer.client_hello import MAX_RECORD_BYTES, offered_protocols, record_bytes
from kvsync_protocol.errors import MalformedError


def hello(*protocols: str) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocols:
        context.set_alpn_protocols(list(protocols))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="node.example")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    return outgoing.read()


HELLO = hello("kvsync-bulk/1", "http/1.1")


OUTCOMES = {"names", "tls.record", "tls.client_hello"}


def outcome(record: bytes) -> str:
    try:
        names = offered_protocols(record)
    except MalformedError as error:
        return error.code
    return "names" if all(0 < len(name) < 256 for name in names) else "an impossible name"


@pytest.mark.parametrize("protocols", [(), ("http/1.1",), ("kvsync-bulk/1",), ("a", "b", "c" * 255)])
def test_the_names_that_openssl_offers_are_read_in_order(protocols: tuple[str, ...]) -> None:
    record = hello(*protocols)
    assert record_bytes(record[:5]) == len(record)
    assert offered_protocols(record) == tuple(name.encode() for name in protocols)


@given(st.integers(0, len(HELLO) - 1))
def test_no_cut_of_a_hello_is_read(length: int) -> None:
    with pytest.raises(MalformedError):
        offered_protocols(HELLO[:length])


@given(st.binary(min_size=1, max_size=40))
def test_bytes_after_a_hello_are_refused(more: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        offered_protocols(HELLO + more)
    assert caught.value.code == "tls.record"


@given(st.integers(0, len(HELLO) - 1), st.integers(1, 255))
def test_a_flipped_byte_gives_other_names_or_a_clean_refusal(place: int, flip: int) -> None:
    changed = bytearray(HELLO)
    changed[place] ^= flip
    assert outcome(bytes(changed)) in OUTCOMES


@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(lambda body: record(1, body))))
def test_arbitrary_bytes_never_break_the_reader(data: bytes) -> None:
    assert outcome(data) in OUTCOMES


@given(st.binary(max_size=8))
def test_a_record_header_says_a_legal_size_or_is_refused(header: bytes) -> None:
    try:
        size = record_bytes(header)
    except MalformedError:
        return
    assert 9 <= size <= MAX_RECORD_BYTES


def record(kind: int, body: bytes) -> bytes:
    message = bytes([kind]) + len(body).to_bytes(3, "big") + body
    return b"\x16\x03\x01" + len(message).to_bytes(2, "big") + message


def body_with(*extensions: tuple[int, bytes]) -> bytes:
    packed = b"".join(kind.to_bytes(2, "big") + len(data).to_bytes(2, "big") + data for kind, data in extensions)
    return bytes(34) + b"\x00" + b"\x00\x02\x13\x01" + b"\x01\x00" + len(packed).to_bytes(2, "big") + packed


ALPN = b"\x00\x03\x02h2"


@pytest.mark.parametrize(
    "case",
    [
        record(2, body_with((16, ALPN))),
        record(1, body_with((16, ALPN), (16, ALPN))),
        record(1, body_with((16, b"\x00\x01\x00"))),
        record(1, body_with((16, ALPN + b"\x00"))),
        record(1, body_with((16, b"\x00\x04\x05h2"))),
        record(1, body_with((16, ALPN)) + b"\x00"),
        b"\x16\x03\x01\x40\x01" + bytes(2**14 + 1),
        b"\x17" + HELLO[1:],
        b"GET / HTTP/1.1\r\n\r\n",
    ],
    ids=[
        "a ServerHello",
        "ALPN twice",
        "an empty name",
        "bytes after the list",
        "a name longer than the list",
        "bytes after the extensions",
        "a record above 2^14",
        "application data",
        "plain HTTP",
    ],
)
def test_what_is_no_clean_client_hello_is_refused(case: bytes) -> None:
    with pytest.raises(MalformedError):
        offered_protocols(case)


def test_a_well_formed_hello_made_by_hand_is_read() -> None:
    assert offered_protocols(record(1, body_with((0, b"x"), (16, ALPN)))) == (b"h2",)
