"""What can go wrong on this host: one tree beside the protocol's, and the exit status of each branch.

CodedError (kvsync_protocol.errors)
├── ProtocolError …          bytes from elsewhere
└── KvsyncError
    ├── UsageError           the caller asked for something that makes no sense      exit 2
    ├── NotFoundError        no such artifact, name, peer, model, document           exit 7
    ├── UnavailableError     the daemon or a peer cannot be reached, or is too slow  exit 8
    ├── StoreError           disk full, quota, unreadable home, another owner        exit 9
    ├── EngineError          the model cannot be loaded, run or restored exactly     exit 10
    └── PolicyError          a rule of this host forbids it                          exit 5

Only the CLI turns these into exit statuses and text.
"""

from __future__ import annotations

from typing import Final

from kvsync_protocol.errors import (
    CodedError,
    IntegrityError,
    MalformedError,
    MismatchError,
    TrustError,
    VersionError,
)


class KvsyncError(CodedError):
    """An error of this host's own making or circumstances."""


class UsageError(KvsyncError):
    """The caller asked for something that makes no sense."""


class NotFoundError(KvsyncError):
    """What was named does not exist here."""


class UnavailableError(KvsyncError):
    """A daemon or peer cannot be reached, or did not answer in time."""


class StoreError(KvsyncError):
    """The store cannot take or give the bytes."""


class EngineError(KvsyncError):
    """The model cannot be loaded, run or restored exactly."""


class PolicyError(KvsyncError):
    """A rule of this host forbids it."""


EXIT_STATUS: Final[dict[type[CodedError], int]] = {
    UsageError: 2,
    MalformedError: 3,
    VersionError: 3,
    IntegrityError: 4,
    TrustError: 5,
    PolicyError: 5,
    MismatchError: 6,
    NotFoundError: 7,
    UnavailableError: 8,
    StoreError: 9,
    EngineError: 10,
}
"""Exit statuses by error class; 1 is an unexpected error, 130 an interrupt."""


def exit_status(error: CodedError) -> int:
    """The status of the most specific class in the table."""
    return next((EXIT_STATUS[kind] for kind in type(error).__mro__ if kind in EXIT_STATUS), 1)
