"""Statements about keys that this node keeps and passes on: `statements.json` in its home.

    {"version", "successors": [envelope as text], "revocations": [envelope as text], "own": [key, ...]}

`own` are the authorities under which this node itself has revoked. One file, replaced as a whole, so that a
kill at any moment leaves all of it. Whether a statement is worth keeping is decided in `spread`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import exclusive, read_limited, write_atomic
from kvsync_protocol import strictjson
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_JSON_BYTES, MAX_LIST_ENTRIES
from kvsync_protocol.revocation import RevocationList
from kvsync_protocol.signing import PublicKey, SigningKey
from kvsync_protocol.statements import KeyStatements
from kvsync_protocol.successor import Successor

_VERSION: Final = 1
_MAX_BYTES: Final = 2 * MAX_JSON_BYTES


@dataclass(frozen=True, slots=True)
class Held:
    """What the file says, verified."""

    successors: tuple[tuple[Successor, Envelope], ...] = ()
    revocations: tuple[tuple[RevocationList, Envelope], ...] = ()
    own: tuple[PublicKey, ...] = ()

    @property
    def message(self) -> KeyStatements:
        """As it is told to others."""
        return KeyStatements(tuple(e for _, e in self.successors), tuple(e for _, e in self.revocations))

    def with_successor(self, statement: Successor, envelope: Envelope) -> Held:
        """In place of an earlier one of the same key."""
        kept = [(s, e) for s, e in self.successors if (s.kind, s.old) != (statement.kind, statement.old)]
        return replace(self, successors=(*kept, (statement, envelope)))

    def with_revocations(self, found: RevocationList, envelope: Envelope, *, own: bool = False) -> Held:
        """In place of an earlier list of the same authority."""
        kept = [(r, e) for r, e in self.revocations if r.authority != found.authority]
        owners = tuple(sorted({*self.own, found.authority})) if own else self.own
        return replace(self, revocations=(*kept, (found, envelope)), own=owners)

    def list_of(self, authority: PublicKey) -> RevocationList | None:
        return next((r for r, _ in self.revocations if r.authority == authority), None)


class Statements:
    """The file. Safe for several processes."""

    def __init__(self, home: Home) -> None:
        self._path = home.statements_file
        self._lock = home.lock_file

    def held(self) -> Held:
        """Raises StoreError `statements.damaged`."""
        try:
            data = read_limited(self._path, _MAX_BYTES, what="the statements")
        except NotFoundError:
            return Held()
        try:
            return _parse(data)
        except ProtocolError as error:
            raise StoreError(
                "statements.damaged", f"{self._path} is damaged: {error.message}", hint="restore or remove it"
            ) from error

    def locked(self) -> AbstractContextManager[None]:
        """Hold off other changes of this home's keys and lists."""
        return exclusive(self._lock)

    def change(self, change: Callable[[Held], Held]) -> Held:
        """Replace what is held by `change` of it, in one step. Raises UsageError `statements.full`."""
        with self.locked():
            before = self.held()
            after = change(before)
            if after != before:
                self._save(after)
        return after

    def revoke(self, key: PublicKey, authority: SigningKey) -> RevocationList:
        """Add `key` to this node's own list under `authority`, with the next sequence number."""

        def add(held: Held) -> Held:
            last = held.list_of(authority.public)
            keys = {key, *(last.keys if last else ())}
            if last is not None and keys == set(last.keys):
                return held
            found = RevocationList(authority.public, last.sequence + 1 if last else 1, tuple(sorted(keys, key=str)))
            return held.with_revocations(found, found.seal(authority), own=key != authority.public)

        found = self.change(add).list_of(authority.public)
        if found is None:
            raise StoreError("statements.damaged", "a revocation that was just written is gone")
        return found

    def _save(self, held: Held) -> None:
        message = held.message
        if (
            len(held.successors) > MAX_LIST_ENTRIES
            or len(held.revocations) > MAX_LIST_ENTRIES
            or len(message.encode()) > MAX_JSON_BYTES
        ):
            raise UsageError("statements.full", f"{self._path.name} holds more than a peer would take")
        content = strictjson.loads(message.encode(), limit=MAX_JSON_BYTES, what="the statements")
        data = {**content, "version": _VERSION, "own": [str(key) for key in held.own]}
        write_atomic(self._path, strictjson.dumps(data))


@lru_cache(maxsize=8)
def _parse(data: bytes) -> Held:
    """Verified once per content: the file is read at every look at a list."""
    fields = strictjson.Fields(strictjson.loads(data, limit=_MAX_BYTES, what="the statements"), "statements")
    fields.integer("version", 1, _VERSION)
    own = tuple(PublicKey.parse(key) for key in fields.array("own", limit=MAX_LIST_ENTRIES))
    said = {"successors": fields.take("successors"), "revocations": fields.take("revocations")}
    fields.done()
    message = KeyStatements.parse(strictjson.dumps(said))
    return Held(
        tuple((Successor.open(envelope), envelope) for envelope in message.successors),
        tuple((RevocationList.open(envelope), envelope) for envelope in message.revocations),
        own,
    )
