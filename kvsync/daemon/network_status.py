"""How a daemon's status shows the network: each registry's state, and what is followed.

`X.parse(x.as_json()) == x`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync_protocol.limits import MAX_CODE_CHARS, KiB
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER, Fields

MAX_SHOWN: Final = 1000
_FAMILY: Final = "status"


@dataclass(frozen=True, slots=True)
class RegistryState:
    """`state` is new, ok, away or refused, `code` why; `due` statements are still to be told.

    `spoken_s` is how long ago it last took everything. The embedded registry has no address of its own.
    """

    name: str
    address: str
    key: str
    state: str
    code: str
    due: int
    spoken_s: int | None

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "address": self.address,
            "key": self.key,
            "state": self.state,
            "code": self.code,
            "due": self.due,
            "spoken_s": self.spoken_s,
        }

    @classmethod
    def parse(cls, value: object) -> RegistryState:
        fields = Fields(value, _FAMILY)
        found = cls(
            fields.string("name", limit=800),
            fields.string("address", limit=8 * KiB),
            fields.string("key", limit=8 * KiB),
            fields.string("state", limit=20),
            fields.string("code", limit=MAX_CODE_CHARS),
            fields.integer("due", 0, MAX_SAFE_INTEGER),
            fields.optional("spoken_s", lambda name: fields.integer(name, 0, MAX_SAFE_INTEGER)),
        )
        fields.done()
        return found


@dataclass(frozen=True, slots=True)
class FollowState:
    """How many names are in step, being fetched, and failing; `silent` peers and registries do not answer."""

    patterns: int = 0
    in_step: int = 0
    fetching: int = 0
    failing: int = 0
    silent: int = 0

    def as_json(self) -> dict[str, int]:
        return {
            "patterns": self.patterns,
            "in_step": self.in_step,
            "fetching": self.fetching,
            "failing": self.failing,
            "silent": self.silent,
        }

    @classmethod
    def parse(cls, value: object) -> FollowState:
        fields = Fields(value, _FAMILY)
        names = ("patterns", "in_step", "fetching", "failing", "silent")
        found = cls(*(fields.integer(name, 0, MAX_SAFE_INTEGER) for name in names))
        fields.done()
        return found


NOTHING_FOLLOWED: Final = FollowState()
