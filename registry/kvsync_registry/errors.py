"""What a registry refuses, beside the protocol's own errors.

CodedError (kvsync_protocol.errors)
├── ProtocolError …          bytes from elsewhere
└── RegistryError
    ├── RefusedError         the asker may not do this                       HTTP 403
    ├── NotFoundError        nothing here that the asker may see             HTTP 404
    ├── UnavailableError     the database is away or busy; try again later   HTTP 503
    └── FullError            a cap is reached, or the disk is full           HTTP 507
"""

from __future__ import annotations

from kvsync_protocol.errors import CodedError


class RegistryError(CodedError):
    """An error of the registry's own making or circumstances."""


class RefusedError(RegistryError):
    """The asker may not do this."""


class NotFoundError(RegistryError):
    """There is nothing here that the asker may see."""


class UnavailableError(RegistryError):
    """The database cannot be used just now."""


class FullError(RegistryError):
    """No room, by a rule or by the disk."""
