"""What goes wrong on a connection, as kvsync names it."""

from __future__ import annotations

import ssl
from typing import Final

from kvsync.errors import KvsyncError, UnavailableError
from kvsync_protocol.errors import TrustError

_REFUSALS: Final = ("UNKNOWN_CA", "CERTIFICATE_REQUIRED", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "ACCESS_DENIED")


def closed() -> UnavailableError:
    return UnavailableError("peer.closed", "the peer closed the connection")


def stalled() -> UnavailableError:
    return UnavailableError(
        "peer.stalled", "the peer moves nothing, or too little", hint="try again, or another peer"
    )


def stream_error(error: OSError) -> KvsyncError | TrustError:
    """A failed read, write or connect."""
    if isinstance(error, TimeoutError):
        return stalled()
    if isinstance(error, ssl.SSLError):
        return tls_error(getattr(error, "reason", None) or str(error))  # aiohttp's kinds of it have none
    return UnavailableError("peer.closed", f"the connection broke: {error.strerror or error}")


def tls_error(reason: str) -> KvsyncError | TrustError:
    """A failed handshake or a TLS alert; `reason` is OpenSSL's name of it.

    In TLS 1.3 a client learns only after its own handshake that the server refused its certificate.
    """
    name = reason.upper().replace(" ", "_")
    if "CERTIFICATE_VERIFY_FAILED" in name:
        return TrustError("peer.identity", "something that does not hold the pinned key answers there")
    if any(refusal in name for refusal in _REFUSALS):
        return TrustError("peer.refused", "the peer does not know this node", hint="kvsync peer add, on the peer")
    return UnavailableError("peer.closed", f"the TLS connection broke: {reason}")
