"""Pinned identities in real TLS handshakes over a socket pair."""

from __future__ import annotations

import datetime
import socket
import ssl
from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from kvsync.peer.identity import NodeIdentity, anchor, check_peer, peer_key
from kvsync_protocol.errors import TrustError
from kvsync_protocol.signing import SigningKey

A, B, C = (SigningKey(bytes([number]) * 32) for number in (1, 2, 3))
PROTOCOL = "kvsync-test/1"


def shake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLSocket, ssl.SSLSocket]:
    """Both ends of a finished handshake; raises what the server side raised, else the client's error."""
    left, right = socket.socketpair()
    left.settimeout(5)
    right.settimeout(5)

    def serve() -> ssl.SSLSocket:
        try:
            secured = server.wrap_socket(left, server_side=True)
            secured.sendall(b"!")
        except BaseException:
            left.close()
            raise
        return secured

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        asking: socket.socket = right
        try:
            secured = client.wrap_socket(right)
            asking = secured
            secured.recv(1)
        except OSError:
            asking.close()
            serving.exception(5)
            raise
        return serving.result(5), secured


def test_both_ends_learn_the_other_ones_key_and_nothing_else() -> None:
    server = NodeIdentity(A).server_context([C.public, B.public], PROTOCOL)
    client = NodeIdentity(B).client_context(A.public, PROTOCOL)
    serving, asking = shake(server, client)
    with serving, asking:
        assert (peer_key(serving), peer_key(asking)) == (B.public, A.public)
        assert serving.version() == asking.version() == "TLSv1.3"
        check_peer(asking, A.public, PROTOCOL)
        leaf = x509.load_der_x509_certificate(asking.getpeercert(binary_form=True) or b"")
        assert leaf.subject.rfc4514_string() == "CN=kvsync node"
        assert leaf.issuer.rfc4514_string() == f"CN=kvsync {A.public}"


@pytest.mark.parametrize(
    ("pins", "who", "expected"),
    [([C.public], B, A), ([], B, A), ([B.public], C, A), ([B.public], B, C)],
    ids=["client is not pinned", "nobody is pinned", "client holds another key", "server holds another key"],
)
def test_any_other_key_ends_the_handshake(pins: list[object], who: SigningKey, expected: SigningKey) -> None:
    server = NodeIdentity(A).server_context(pins, PROTOCOL)  # type: ignore[arg-type]
    client = NodeIdentity(who).client_context(expected.public, PROTOCOL)
    with pytest.raises(ssl.SSLError):
        shake(server, client)


def chain_of(key: SigningKey, *, issuer: SigningKey, subject_key: object = None) -> str:
    """PEM of a private key and a leaf for it, issued by another node's key."""
    private = subject_key or Ed25519PrivateKey.from_private_bytes(key.seed)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"kvsync {issuer.public}")])
    leaf = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kvsync node")]))
        .issuer_name(name)
        .public_key(private.public_key())  # type: ignore[attr-defined]
        .serial_number(7)
        .not_valid_before(datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC))
        .sign(Ed25519PrivateKey.from_private_bytes(issuer.seed), None)
    )
    pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # type: ignore[attr-defined]
    return (pem + leaf.public_bytes(Encoding.PEM)).decode()


@pytest.mark.parametrize("curve", [False, True], ids=["another Ed25519 key", "a key of another kind"])
def test_a_pinned_key_cannot_vouch_for_another_one(tmp_path: object, curve: bool) -> None:
    """OpenSSL accepts such a chain; the comparison after the handshake does not."""
    file = tmp_path / "chain.pem"  # type: ignore[operator]
    file.write_text(chain_of(C, issuer=A, subject_key=generate_private_key(SECP256R1()) if curve else None))
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    server.set_alpn_protocols([PROTOCOL])
    serving, asking = shake(server, NodeIdentity(B).client_context(A.public, PROTOCOL))
    with serving, asking, pytest.raises(TrustError) as caught:
        check_peer(asking, A.public, PROTOCOL)
    assert caught.value.code == "peer.identity"


def test_another_negotiated_protocol_is_refused() -> None:
    server = NodeIdentity(A).server_context([B.public], "other/1")
    serving, asking = shake(server, NodeIdentity(B).client_context(A.public, PROTOCOL))
    with serving, asking, pytest.raises(TrustError) as caught:
        check_peer(asking, A.public, PROTOCOL)
    assert caught.value.code == "peer.protocol"


def test_older_tls_is_refused_by_both_sides() -> None:
    for old_side in ("server", "client"):
        server = NodeIdentity(A).server_context([B.public], PROTOCOL)
        client = NodeIdentity(B).client_context(A.public, PROTOCOL)
        old = server if old_side == "server" else client
        old.minimum_version = ssl.TLSVersion.TLSv1_2
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError):
            shake(server, client)


def test_a_server_hands_out_no_session_to_resume() -> None:
    server = NodeIdentity(A).server_context([B.public], PROTOCOL)
    serving, asking = shake(server, NodeIdentity(B).client_context(A.public, PROTOCOL))
    with serving, asking:
        assert asking.session is None or not asking.session.has_ticket


def test_certificates_are_valid_whatever_the_clock_says() -> None:
    certificate = anchor(A.public)
    assert certificate.not_valid_before_utc.year == 2000
    assert certificate.not_valid_after_utc.year == 9999


def test_the_secret_key_is_in_no_repr() -> None:
    assert A.seed.hex() not in repr(vars(NodeIdentity(A)))
