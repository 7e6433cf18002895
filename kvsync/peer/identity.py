"""Pinned Ed25519 identities in standard TLS 1.3: certificates carry keys and nothing else (SPEC 8.3).

    node's leaf       subject "kvsync node", issuer "kvsync <key>", public key and signature: the node's own
    verifier's anchor subject = issuer "kvsync <key>", public key: the pinned one, signed by a throwaway key

OpenSSL checks the leaf's signature against the anchor's key and never an anchor's own signature, so a
verifier can make anchors from keys alone. Validity is fixed, because clocks must not matter. Knows no
addresses, names or roles.
"""

from __future__ import annotations

import datetime
import os
import ssl
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Literal, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.x509.oid import NameOID

from kvsync_protocol import join
from kvsync_protocol.errors import TrustError
from kvsync_protocol.signing import PublicKey, SigningKey

NODE_NAME: Final = "kvsync node"
JOIN_NAME: Final = "kvsync join"
_FROM: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_UNTIL: Final = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)
_DER: Final = serialization.Encoding.DER
_PEM: Final = serialization.Encoding.PEM


class NodeIdentity:
    """This node's peer key as TLS needs it. The secret is given to OpenSSL through memory only."""

    def __init__(self, key: SigningKey) -> None:
        self.public = key.public
        self.private = Ed25519PrivateKey.from_private_bytes(key.seed)
        self.certificate = _certificate(NODE_NAME, _issuer(key.public), key.public, self.private, authority=False)
        form = serialization.PrivateFormat.PKCS8
        self._secret = self.private.private_bytes(_PEM, form, serialization.NoEncryption())
        self._chain = self._secret + self.certificate.public_bytes(_PEM)

    def server_context(self, pins: Iterable[PublicKey], protocol: str) -> ssl.SSLContext:
        """A context that completes handshakes with holders of the pinned keys only."""
        context = self._context(ssl.PROTOCOL_TLS_SERVER, pins, protocol)
        context.num_tickets = 0  # a resumed session would outlive its key's removal from the pins
        return context

    def client_context(self, pins: PublicKey | Iterable[PublicKey], *protocols: str) -> ssl.SSLContext:
        """A context whose handshake proves that the other side holds the pin, or one of them.

        It offers the protocols in this order.
        """
        return self._context(ssl.PROTOCOL_TLS_CLIENT, _several(pins), *protocols)

    def join_client_context(self, pin: PublicKey) -> ssl.SSLContext:
        """A context that shows this node's key to a server which does not know it yet, and which must hold `pin`."""
        leaf = _certificate(
            NODE_NAME, JOIN_NAME, self.public, Ed25519PrivateKey.from_private_bytes(join.ANCHOR_SEED), authority=False
        )
        return self._context(ssl.PROTOCOL_TLS_CLIENT, [pin], join.ALPN, chain=self._secret + leaf.public_bytes(_PEM))

    def _context(
        self, side: int, pins: Iterable[PublicKey], *protocols: str, chain: bytes | None = None
    ) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        context.check_hostname = False  # names and addresses prove nothing here
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
        context.set_alpn_protocols(list(protocols))
        for pin in pins:
            context.load_verify_locations(cadata=anchor(pin).public_bytes(_DER))
        secret = os.memfd_create("kvsync-identity", os.MFD_CLOEXEC)
        try:
            os.write(secret, self._chain if chain is None else chain)
            context.load_cert_chain(f"/proc/self/fd/{secret}")
        finally:
            os.close(secret)
        return context


@lru_cache(maxsize=1024)
def anchor(pin: PublicKey) -> x509.Certificate:
    """A trust anchor for one pinned key. Kept: anyone can make one, so there is no secret in it."""
    name = _issuer(pin)
    return _certificate(name, name, pin, Ed25519PrivateKey.generate(), authority=True)


@lru_cache(maxsize=1)
def join_anchor() -> x509.Certificate:
    """The anchor of those who join, under a key that anybody has: it proves nothing but that they mean to."""
    signer = Ed25519PrivateKey.from_private_bytes(join.ANCHOR_SEED)
    key = SigningKey(join.ANCHOR_SEED).public
    return _certificate(JOIN_NAME, JOIN_NAME, key, signer, authority=True)


class Session(Protocol):
    """A TLS connection after its handshake, as Python's `ssl` shows it."""

    def getpeercert(self, binary_form: Literal[True]) -> bytes | None:
        """The other side's certificate, DER."""

    def selected_alpn_protocol(self) -> str | None: ...


def peer_key(session: Session) -> PublicKey:
    """The key that the other side of a finished handshake proved to hold.

    Raises:
        TrustError: `peer.identity` when it presented none, or not an Ed25519 one.
    """
    certificate = session.getpeercert(binary_form=True)
    try:
        key = x509.load_der_x509_certificate(certificate).public_key() if certificate else None
    except (ValueError, x509.InvalidVersion, UnsupportedAlgorithm):  # what OpenSSL lets through is not all known here
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise TrustError("peer.identity", "the other side has no Ed25519 identity")
    return PublicKey(key.public_bytes_raw())


def check_peer(session: Session, pins: PublicKey | Iterable[PublicKey], *protocols: str) -> None:
    """Compare key and negotiated protocol with what was meant, one of `protocols`.

    An anchor's holder could have signed a certificate for another key; comparing the leaf's own key
    shuts that door.

    Raises:
        TrustError: `peer.identity`, `peer.protocol`.
    """
    if peer_key(session) not in _several(pins):
        raise TrustError("peer.identity", "the other side holds another key than the pinned one")
    if session.selected_alpn_protocol() not in protocols:
        raise TrustError("peer.protocol", f"the other side does not speak {' or '.join(protocols)}")


def _several(pins: PublicKey | Iterable[PublicKey]) -> tuple[PublicKey, ...]:
    return (pins,) if isinstance(pins, PublicKey) else tuple(pins)


def _issuer(key: PublicKey) -> str:
    """Unique per key, and below the 64 characters that a common name may have."""
    return f"kvsync {key}"


def _certificate(
    subject: str, issuer: str, key: PublicKey, signer: Ed25519PrivateKey, *, authority: bool
) -> x509.Certificate:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(Ed25519PublicKey.from_public_bytes(key.raw))
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .sign(signer, None)
    )
