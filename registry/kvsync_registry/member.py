"""Members: whom a registry answers, and as which readers. Knows no files and no TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvsync_protocol.reader import MEMBERS, tenant
from kvsync_protocol.signing import PublicKey


@dataclass(frozen=True, slots=True)
class Member:
    """`tenant` is a name or None. `ask` allows lookups, `publish` announcements, names and attestations.

    `names` are the names it may set: exact, or ending in `*`.
    """

    key: PublicKey
    tenant: str | None = None
    ask: bool = True
    publish: bool = False
    names: tuple[str, ...] = ("*",)

    @property
    def readers(self) -> tuple[str, ...]:
        """As whom it reads."""
        own = (MEMBERS, str(self.key))
        return own if self.tenant is None else (*own, tenant(self.tenant))

    def may_name(self, name: str) -> bool:
        return any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern for pattern in self.names
        )


class Members(Protocol):
    """Where a registry learns who a key is, asked at every request."""

    def find(self, key: PublicKey) -> Member | None: ...
