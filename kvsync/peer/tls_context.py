"""The bulk lane's TLS 1.3: identities as in identity.py, on the OpenSSL that comes with `cryptography`.

It ciphers with what the CPU has, and reads straight into memory that it is given; Python's own does neither on most
systems of today (ADR 12). On the wire both are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from cryptography.x509 import Certificate
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509Store

from kvsync.peer.identity import NodeIdentity, anchor, join_anchor
from kvsync_protocol import join
from kvsync_protocol.signing import PublicKey

_PARTIAL_WRITE: Final = 1
"""SSL_MODE_ENABLE_PARTIAL_WRITE of openssl/ssl.h, which pyOpenSSL sets: each `send` would end after one record."""
_CIPHERS: Final = b"TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256"
"""The one that every TLS 1.3 has comes first: it costs a quarter less than the next."""


def serving_context(identity: NodeIdentity, pins: Iterable[PublicKey], protocol: str) -> SSL.Context:
    """A context that completes handshakes with holders of the pinned keys only."""
    return _serving(identity, map(anchor, pins), protocol)


def join_context(identity: NodeIdentity) -> SSL.Context:
    """A context in which any key may come, and proves itself: for the join lane alone (KEYS 5)."""
    return _serving(identity, [join_anchor()], join.ALPN)


def asking_context(identity: NodeIdentity, pins: Iterable[PublicKey], *protocols: str) -> SSL.Context:
    """A context whose handshake proves that the other side holds one of the pins.

    It offers the protocols in this order.
    """
    context = _context(SSL.TLS_CLIENT_METHOD, identity, map(anchor, pins))
    context.set_alpn_protos([protocol.encode() for protocol in protocols])
    return context


def _serving(identity: NodeIdentity, anchors: Iterable[Certificate], protocol: str) -> SSL.Context:
    context = _context(SSL.TLS_SERVER_METHOD, identity, anchors)
    wanted = protocol.encode()
    context.set_alpn_select_callback(lambda _, offered: wanted if wanted in offered else SSL.NO_OVERLAPPING_PROTOCOLS)
    # A resumed session would outlive its key's removal from the pins: none is kept, and no ticket holds one.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.set_options(SSL.OP_NO_TICKET)
    return context


def _context(method: int, identity: NodeIdentity, anchors: Iterable[Certificate]) -> SSL.Context:
    context = SSL.Context(method)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT)
    context.set_tls13_ciphersuites(_CIPHERS)
    context.clear_mode(_PARTIAL_WRITE)
    context.use_certificate(identity.certificate)
    context.use_privatekey(identity.private)
    store = cast(X509Store, context.get_cert_store())  # None is for contexts that have lost theirs
    for certificate in anchors:
        store.add_cert(X509.from_cryptography(certificate))
    return context
