"""JSON bodies of the control lane. Each reads strictly what it writes (SPEC 8.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, MalformedError, VersionError
from kvsync_protocol.limits import MAX_ENVELOPE_BYTES, MAX_JSON_BYTES, MAX_LEAVES, MAX_LIST_ENTRIES
from kvsync_protocol.signing import PublicKey

PROTOCOL_VERSION = 1


def _read(data: bytes, what: str) -> strictjson.Fields:
    return strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what=what), "message")


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers, and what the caller may do there."""

    software: str
    signers: tuple[PublicKey, ...]
    roles: tuple[str, ...]
    protocol: int = PROTOCOL_VERSION

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "protocol": self.protocol,
                "software": self.software,
                "signers": [str(key) for key in self.signers],
                "roles": list(self.roles),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> Hello:
        """Raises MalformedError `message.*`, VersionError `version.protocol`."""
        fields = _read(data, "the hello")
        protocol = fields.integer("protocol", 1, 2**31)
        if protocol != PROTOCOL_VERSION:
            raise VersionError(
                "version.protocol", f"the peer speaks protocol {protocol}, this host {PROTOCOL_VERSION}"
            )
        signers = tuple(PublicKey.parse(key) for key in fields.array("signers", limit=16))
        roles = tuple(str(role) for role in fields.array("roles", limit=16))
        return cls(fields.string("software", limit=200), signers, roles)


@dataclass(frozen=True, slots=True)
class RefList:
    """Signed refs, each in its own envelope; `more` tells that another page follows `after` the last."""

    refs: tuple[Envelope, ...]
    more: bool = False

    def encode(self) -> bytes:
        return strictjson.dumps({"refs": [ref.encode().decode() for ref in self.refs], "more": self.more})

    @classmethod
    def parse(cls, data: bytes) -> RefList:
        """Raises MalformedError `message.*`, `envelope.*`."""
        fields = _read(data, "the list of refs")
        entries = fields.array("refs", limit=MAX_LIST_ENTRIES)
        more = fields.boolean("more")
        fields.done()
        if not all(isinstance(entry, str) for entry in entries):
            raise MalformedError("message.type", "a ref is an envelope as text")
        return cls(tuple(Envelope.parse(str(entry).encode()) for entry in entries), more)


@dataclass(frozen=True, slots=True)
class Missing:
    """Leaves the receiver of an offer still wants, as half-open ranges in ascending order."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, indices: Iterable[int]) -> Missing:
        ranges: list[tuple[int, int]] = []
        for index in indices:
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
        return cls(tuple(ranges))

    def indices(self) -> Iterable[int]:
        for start, stop in self.ranges:
            yield from range(start, stop)

    def encode(self) -> bytes:
        return strictjson.dumps({"ranges": [list(pair) for pair in self.ranges]})

    @classmethod
    def parse(cls, data: bytes, *, leaves: int) -> Missing:
        """`leaves` is the signed tree size. Raises MalformedError `message.*`."""
        fields = _read(data, "the list of missing chunks")
        entries = fields.array("ranges", limit=MAX_LEAVES)
        fields.done()
        ranges: list[tuple[int, int]] = []
        last = -1
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != 2 or not all(type(x) is int for x in entry):
                raise MalformedError("message.type", "a range is two whole numbers")
            start, stop = entry
            if not last < start < stop <= leaves:
                raise MalformedError("message.range", "ranges are out of order or outside the tree")
            ranges.append((start, stop))
            last = stop
        return cls(tuple(ranges))


@dataclass(frozen=True, slots=True)
class Commit:
    """Ends an offer: all chunks are there. Carries the ref under which to publish, if any."""

    ref: Envelope | None = None

    def encode(self) -> bytes:
        return strictjson.dumps({"ref": None if self.ref is None else self.ref.encode().decode()})

    @classmethod
    def parse(cls, data: bytes) -> Commit:
        fields = _read(data, "the commit")
        text = fields.optional("ref", lambda name: fields.string(name, limit=MAX_ENVELOPE_BYTES))
        fields.done()
        return cls(None if text is None else Envelope.parse(text.encode()))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an offer: the artifact as this side names it, and what it already has."""

    artifact: ArtifactId
    complete: bool

    def encode(self) -> bytes:
        return strictjson.dumps({"artifact": str(self.artifact), "complete": self.complete})

    @classmethod
    def parse(cls, data: bytes) -> Accepted:
        fields = _read(data, "the answer")
        accepted = cls(ArtifactId(fields.digest("artifact")), fields.boolean("complete"))
        fields.done()
        return accepted


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as it crosses the wire. `code` keeps its meaning on the other side."""

    code: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: CodedError) -> ErrorReply:
        return cls(error.code, error.message, error.hint)

    def encode(self) -> bytes:
        return strictjson.dumps({"code": self.code, "message": self.message, "hint": self.hint})

    @classmethod
    def parse(cls, data: bytes) -> ErrorReply:
        fields = _read(data, "the error")
        reply = cls(
            fields.string("code", limit=100), fields.string("message", limit=2000), fields.string("hint", limit=2000)
        )
        fields.done()
        return reply
