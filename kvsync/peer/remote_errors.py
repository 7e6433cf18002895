"""A refusal as it crosses the control lane: the class of an error as an HTTP status, and back, under the same code.

Its text goes to a person's terminal, so control characters are taken out.
"""

from __future__ import annotations

from typing import Final

from kvsync.errors import NotFoundError, PolicyError, StoreError, UnavailableError, UsageError
from kvsync_protocol.bulk import Status
from kvsync_protocol.errors import (
    CodedError,
    IntegrityError,
    MalformedError,
    MismatchError,
    ProtocolError,
    TrustError,
    VersionError,
)
from kvsync_protocol.messages import ErrorReply

STATUS: Final[dict[type[CodedError], int]] = {
    MalformedError: 400,
    VersionError: 400,
    UsageError: 400,
    TrustError: 403,
    PolicyError: 403,
    NotFoundError: 404,
    MismatchError: 409,
    IntegrityError: 422,
    UnavailableError: 503,
    StoreError: 507,
}
"""HTTP status by error class; `remote_error` turns it back into the class."""


def http_status(error: CodedError) -> int:
    """The status of the most specific class in the table."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def remote_error(peer: str, status: int, body: bytes) -> CodedError:
    """The error that `peer` answered with. A body that is no error reply makes MalformedError `message.status`."""
    try:
        reply = ErrorReply.parse(body)
    except ProtocolError:
        return MalformedError("message.status", f"{peer} answered {status} without a reason", status=status)
    code = "".join(c for c in reply.code if c.isascii() and (c.isalnum() or c in "._")) or "peer.failed"
    return _class(status, code)(code, f"{peer} says: {_shown(reply.message)}", hint=_shown(reply.hint), peer=peer)


def _class(status: int, code: str) -> type[CodedError]:
    if status == 400:
        return VersionError if code.startswith("version.") else MalformedError
    if status == 403:
        return TrustError if code.startswith("trust.") else PolicyError
    return {
        404: NotFoundError,
        409: MismatchError,
        422: IntegrityError,
        507: StoreError,
    }.get(status, UnavailableError)


def bulk_error(peer: str, status: Status, index: int) -> CodedError:
    """The error of a bulk reply other than OK."""
    what = f"chunk {index}"
    match status:
        case Status.NOT_FOUND:
            return NotFoundError("peer.chunk_gone", f"{peer} no longer has {what}", peer=peer, index=index)
        case Status.REFUSED:
            return PolicyError("peer.chunk_refused", f"{peer} does not take {what}", peer=peer, index=index)
        case Status.CORRECT_AND_RESEND:
            return IntegrityError("integrity.chunk", f"{peer} received {what} damaged", peer=peer, index=index)
        case Status.FULL:
            return StoreError("store.full", f"{peer} has no room for {what}", peer=peer, index=index)
        case Status.BUSY:
            return UnavailableError("peer.busy", f"{peer} is busy", hint="try again later", peer=peer)
        case _:
            return UnavailableError(
                "peer.failed", f"{peer} failed at {what}; its log says why", peer=peer, index=index
            )


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)
