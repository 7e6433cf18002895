"""Lists of libraries: which entries a signer holds under a name, and which it no longer believes (LIBRARY 2).

Like a ref, a list is signed and numbered: whoever has seen a number of a signer takes no smaller one from it. What
is quarantined stands in the list with its history and never answers. Knows nothing of what an entry says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import MalformedError, TrustError
from kvsync_protocol.limits import MAX_MANIFEST_BYTES, MAX_NAME_CHARS
from kvsync_protocol.ref import check_name
from kvsync_protocol.signing import SigningKey

PAYLOAD_TYPE: Final = "application/vnd.kvsync.library+json"
MAX_LIBRARY_ENTRIES: Final = 8192
MAX_QUARANTINED: Final = 1024
MAX_HISTORY: Final = 8
MAX_REASON_BYTES: Final = 400


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of an entry's history: at `time`, Unix seconds, something was found; `reason` says what."""

    time: int
    reason: str

    def as_json(self) -> dict[str, object]:
        return {"time": self.time, "reason": self.reason}

    @classmethod
    def parse(cls, value: object) -> Finding:
        fields = strictjson.Fields(value, "list")
        found = cls(
            fields.integer("time", 0, strictjson.MAX_SAFE_INTEGER), fields.string("reason", limit=MAX_REASON_BYTES)
        )
        fields.done()
        return found


@dataclass(frozen=True, slots=True)
class Quarantined:
    """An entry that failed after it was taken, and what was found, oldest first."""

    entry: Digest
    history: tuple[Finding, ...]

    def as_json(self) -> dict[str, object]:
        return {"entry": str(self.entry), "history": [finding.as_json() for finding in self.history]}

    @classmethod
    def parse(cls, value: object) -> Quarantined:
        fields = strictjson.Fields(value, "list")
        entry = fields.digest("entry")
        history = tuple(map(Finding.parse, fields.array("history", limit=MAX_HISTORY)))
        fields.done()
        if not history:
            raise MalformedError("list.history", "an entry in quarantine without a reason")
        return cls(entry, history)


@dataclass(frozen=True, slots=True)
class LibraryList:
    """`LibraryList.parse(verified) == l` for a verified payload of `l.encode()`.

    `entries` ascend, as do those in quarantine; no entry is in both.
    """

    name: str
    sequence: int
    entries: tuple[Digest, ...] = ()
    quarantined: tuple[Quarantined, ...] = ()

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "name": self.name,
                "sequence": self.sequence,
                "entries": [str(entry) for entry in self.entries],
                "quarantined": [each.as_json() for each in self.quarantined],
            }
        )

    def seal(self, key: SigningKey) -> Envelope:
        """Sign. Raises as `parse`, so that nothing is signed that would not be read."""
        payload = self.encode()
        self._read(payload)
        return Envelope.seal(PAYLOAD_TYPE, payload, key)

    @classmethod
    def parse(cls, verified: VerifiedPayload) -> LibraryList:
        """Raises MalformedError `json.*`, `list.*`, `ref.name`, `digest.*`; TrustError `trust.payload_type`."""
        if verified.payload_type != PAYLOAD_TYPE:
            raise TrustError("trust.payload_type", "not a library's list")
        return cls._read(verified.payload)

    @classmethod
    def _read(cls, payload: bytes) -> LibraryList:
        fields = strictjson.Fields(strictjson.loads(payload, limit=MAX_MANIFEST_BYTES, what="the list"), "list")
        found = cls(
            name=check_name(fields.string("name", limit=4 * MAX_NAME_CHARS)),
            sequence=fields.integer("sequence", 1, strictjson.MAX_SAFE_INTEGER),
            entries=tuple(map(Digest.parse, fields.array("entries", limit=MAX_LIBRARY_ENTRIES))),
            quarantined=tuple(map(Quarantined.parse, fields.array("quarantined", limit=MAX_QUARANTINED))),
        )
        fields.done()
        apart = [each.entry for each in found.quarantined]
        if any(list(digests) != sorted(set(digests)) for digests in (found.entries, apart)):
            raise MalformedError("list.order", "entries do not ascend")
        if set(found.entries) & set(apart):
            raise MalformedError("list.order", "an entry stands among those that count and in quarantine")
        return found
