"""What is signed about keys, tickets, and the request to join: every codec both ways, and every way to spoil it."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol import strictjson
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import ProtocolError, VersionError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.join import Introduction, JoinAnswer, JoinRequest, refusal
from kvsync_protocol.messages import ErrorReply
from kvsync_protocol.revocation import PAYLOAD_TYPE as REVOCATIONS
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.signing import SigningKey
from kvsync_protocol.statements import KeyStatements
from kvsync_protocol.successor import PAYLOAD_TYPE as SUCCESSOR
from kvsync_protocol.successor import Successor
from kvsync_protocol.ticket import Ticket

OLD, NEW, OTHER = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
STEP = Successor("signer", OLD.public, NEW.public, 1, 1_000, 2_000)
REVOKED = RevocationList(OLD.public, 4, tuple(sorted([NEW.public, OTHER.public], key=str)))
TICKET = Ticket(
    OLD.public, bytes(range(16)), 1_800_000_000, ("192.0.2.1:7410", "[2001:db8::1]:7410", "lab.example:1")
)
PAIR = Fingerprints(
    Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": "w"}),
    Fingerprint(FingerprintKind.NUMERICS, {"torch": "2"}),
)
ABOUT = Introduction("lab", NEW.public, ("192.0.2.1:7410",), (PAIR,))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(ProtocolError) as caught:
        call()
    return caught.value.code


def test_statements_read_what_they_write() -> None:
    assert Successor.open(STEP.seal(OLD, NEW)) == STEP
    assert RevocationList.open(REVOKED.seal(OLD)) == REVOKED
    said = KeyStatements((STEP.seal(OLD, NEW),), (REVOKED.seal(OLD),))
    assert KeyStatements.parse(said.encode()) == said
    assert said.digest != KeyStatements().digest
    assert said.digest == KeyStatements.parse(said.encode()).digest


@pytest.mark.parametrize("keys", [(OLD,), (NEW,), (OTHER,), (OLD, OTHER), (OLD, OLD)])
def test_a_successor_counts_under_both_signatures_only(keys: tuple[SigningKey, ...]) -> None:
    envelope = Envelope.seal(SUCCESSOR, STEP.encode(), *keys)
    assert code_of(lambda: Successor.open(envelope)) == "trust.untrusted_signer"


def test_a_revocation_list_counts_under_its_own_authority_only() -> None:
    envelope = Envelope.seal(REVOCATIONS, REVOKED.encode(), NEW)
    assert code_of(lambda: RevocationList.open(envelope)) == "trust.untrusted_signer"


def test_a_statement_of_one_type_is_none_of_another() -> None:
    assert (
        code_of(lambda: Successor.open(Envelope.seal(REVOCATIONS, STEP.encode(), OLD, NEW))) == "trust.payload_type"
    )
    assert (
        code_of(lambda: RevocationList.open(Envelope.seal(SUCCESSOR, REVOKED.encode(), OLD))) == "trust.payload_type"
    )


GOOD = strictjson.loads(STEP.encode(), limit=4096, what="")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"kind": "both"}, "successor.kind"),
        ({"new": str(OLD.public)}, "successor.keys"),
        ({"since": 2_000}, "successor.time"),
        ({"sequence": 0}, "successor.range"),
        ({"until": True}, "successor.type"),
        ({"old": "alice"}, "key.syntax"),
        ({"more": 1}, "successor.unknown"),
    ],
)
def test_a_spoilt_successor_is_named(change: dict[str, object], code: str) -> None:
    envelope = Envelope.seal(SUCCESSOR, strictjson.dumps({**GOOD, **change}), OLD, NEW)
    assert code_of(lambda: Successor.open(envelope)) == code


@pytest.mark.parametrize(
    "keys", [[], [OTHER, OTHER], sorted([NEW, OTHER], key=lambda k: str(k.public), reverse=True)]
)
def test_a_revocation_list_has_keys_in_order_each_once(keys: list[SigningKey]) -> None:
    content = {"authority": str(OLD.public), "sequence": 1, "keys": [str(key.public) for key in keys]}
    envelope = Envelope.seal(REVOCATIONS, strictjson.dumps(content), OLD)
    assert code_of(lambda: RevocationList.open(envelope)) == "revocation.keys"


@given(st.binary(max_size=300))
def test_arbitrary_payloads_are_refused_or_read(data: bytes) -> None:
    for read, kind in ((Successor.open, SUCCESSOR), (RevocationList.open, REVOCATIONS)):
        with pytest.raises(ProtocolError):
            read(Envelope.seal(kind, data, OLD, NEW))  # type: ignore[operator]
    for parse in (KeyStatements.parse, JoinAnswer.parse):
        with pytest.raises(ProtocolError):
            parse(data)


HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(lambda address: f"[{address}]"),
    st.from_regex(r"[a-z][a-z0-9-]{0,20}(\.[a-z]{2,6})?", fullmatch=True),
)
ADDRESSES = st.builds(lambda host, port: f"{host}:{port}", HOSTS, st.integers(1, 65535))


@given(
    st.binary(min_size=16, max_size=16),
    st.integers(0, 2**40 - 1),
    st.lists(ADDRESSES, min_size=1, max_size=8),
    st.none() | ADDRESSES,
)
def test_a_ticket_reads_what_it_writes(
    secret: bytes, expires: int, addresses: list[str], registry: str | None
) -> None:
    ticket = Ticket(OLD.public, secret, expires, tuple(addresses), registry)
    assert str(Ticket.parse(str(ticket))) == str(ticket)
    assert Ticket.parse(str(ticket)).key.public == ticket.key.public


def test_a_ticket_keeps_every_kind_of_address() -> None:
    assert Ticket.parse(str(TICKET)) == TICKET
    scoped = replace(TICKET, addresses=("[fe80::1%eth0]:7410",), registry="registry.example:7411")
    assert Ticket.parse(str(scoped)) == scoped
    assert len(str(TICKET)) < 160


def test_a_ticket_s_secret_shows_in_no_repr() -> None:
    assert "secret" not in repr(TICKET)


def test_every_edited_or_shortened_ticket_is_refused() -> None:
    text = str(TICKET)
    for at in range(len(text)):
        for letter in "A0-" if at % 7 else "ABCDEFabcdef0123-_":
            if text[at] != letter:
                with pytest.raises(ProtocolError):
                    Ticket.parse(text[:at] + letter + text[at + 1 :])
        assert code_of(lambda at=at: Ticket.parse(text[:at])) in ("ticket.syntax", "ticket.check")  # type: ignore[misc]
    assert code_of(lambda: Ticket.parse(text + "A")) in ("ticket.check", "ticket.syntax")
    assert code_of(lambda: Ticket.parse(text + "\n")) == "ticket.syntax"
    assert code_of(lambda: Ticket.parse("A" * 5000)) == "ticket.syntax"


def test_a_ticket_of_another_version_is_its_own_error() -> None:
    with pytest.raises(VersionError) as caught:
        Ticket.parse("kvt2" + str(TICKET)[4:])
    assert caught.value.code == "version.ticket"


@given(st.binary(max_size=200), st.text(max_size=60))
def test_arbitrary_tickets_are_refused(data: bytes, text: str) -> None:
    for each in (text, f"kvt1_{base64.urlsafe_b64encode(data).decode().rstrip('=')}"):
        with pytest.raises(ProtocolError):
            Ticket.parse(each)


@given(st.binary(max_size=120))
def test_a_ticket_with_a_right_check_and_anything_inside_is_refused_or_read(body: bytes) -> None:
    from kvsync_protocol.ticket import _check

    text = f"kvt1_{base64.urlsafe_b64encode(body + _check(body)).decode().rstrip('=')}"
    try:
        assert str(Ticket.parse(text)) == text
    except ProtocolError as error:
        assert error.code.partition(".")[0] in ("ticket", "key")  # noqa: PT017


@pytest.mark.parametrize(
    "addresses", [(), ("192.0.2.1:1",) * 9, ("192.0.2.1",), ("192.0.2.1:0",), ("::1:5",), ("a/b:1",), ("[lab]:1",)]
)
def test_a_ticket_has_one_to_eight_addresses(addresses: tuple[str, ...]) -> None:
    assert code_of(lambda: replace(TICKET, addresses=addresses)) == "ticket.address"


def test_a_request_to_join_reads_what_it_writes_under_the_ticket_s_key() -> None:
    request = JoinRequest(OLD.public, NEW.public, ABOUT)
    sealed = request.seal(TICKET.key)
    assert JoinRequest.open(sealed, {TICKET.key.public, OTHER.public}) == (request, TICKET.key.public)
    assert code_of(lambda: JoinRequest.open(sealed, {OTHER.public})) == "trust.untrusted_signer"
    assert code_of(lambda: JoinRequest.open(sealed, ())) == "trust.untrusted_signer"


def test_an_answer_is_an_introduction_or_a_refusal() -> None:
    answer = JoinAnswer(ABOUT, ("get", "push"))
    assert JoinAnswer.parse(answer.encode()) == answer
    error = ErrorReply("ticket.spent", "used", "ask for a new one")
    assert JoinAnswer.parse(refusal(error)) == error
    for data in (b"{}", b'{"answer":null,"error":null}', b'{"answer":{},"error":null}', refusal(error)[:-1]):
        with pytest.raises(ProtocolError):
            JoinAnswer.parse(data)
