"""JSON bodies of the control lane. Each reads strictly what it writes (SPEC 8.1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError, MalformedError, VersionError
from kvsync_protocol.limits import (
    MAX_ATTESTATIONS,
    MAX_CODE_CHARS,
    MAX_JSON_BYTES,
    MAX_LIST_ENTRIES,
    MAX_MESSAGE_BYTES,
    MAX_RANGES,
    MAX_ROLES,
    MAX_SIGNATURES,
)
from kvsync_protocol.signing import PublicKey

PROTOCOL_VERSION = 1
_CODE = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+", re.ASCII)


def _read(data: bytes, what: str) -> strictjson.Fields:
    return strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what=what), "message")


@dataclass(frozen=True, slots=True)
class Hello:
    """Who answers, and what the caller may do there. `statements` is the digest of what it says about keys."""

    software: str
    signers: tuple[PublicKey, ...]
    roles: tuple[str, ...]
    statements: Digest | None = None
    protocol: int = PROTOCOL_VERSION

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "protocol": self.protocol,
                "software": self.software,
                "signers": [str(key) for key in self.signers],
                "roles": list(self.roles),
                "statements": None if self.statements is None else str(self.statements),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> Hello:
        """Unknown members are ignored, so that a hello can grow within one protocol version.

        Raises:
            VersionError: `version.protocol`, before anything else is read.
            MalformedError: `json.*`, `message.*`, `key.*`.
        """
        fields = _read(data, "the hello")
        protocol = fields.integer("protocol", 1, strictjson.MAX_SAFE_INTEGER)
        if protocol != PROTOCOL_VERSION:
            raise VersionError(
                "version.protocol", f"the peer speaks protocol {protocol}, this host {PROTOCOL_VERSION}"
            )
        signers = tuple(PublicKey.parse(key) for key in fields.array("signers", limit=MAX_SIGNATURES))
        roles = fields.strings("roles", limit=MAX_ROLES, each=64)
        statements = fields.optional("statements", fields.digest)
        return cls(fields.string("software", limit=200), signers, roles, statements)


@dataclass(frozen=True, slots=True)
class RefList:
    """Signed refs in order of their names, each in its own envelope.

    A page holds as many as fit its limits; `more` tells that another follows, to be asked for with
    `after` and the last name. `RefList.parse(r.encode()) == r`.
    """

    refs: tuple[Envelope, ...]
    more: bool = False

    def encode(self) -> bytes:
        return strictjson.dumps({"refs": [ref.encode().decode() for ref in self.refs], "more": self.more})

    @classmethod
    def parse(cls, data: bytes) -> RefList:
        """Raises MalformedError `json.*`, `message.*`, `envelope.*`."""
        fields = _read(data, "the list of refs")
        entries = fields.strings("refs", limit=MAX_LIST_ENTRIES, each=MAX_JSON_BYTES)
        more = fields.boolean("more")
        fields.done()
        return cls(tuple(Envelope.parse(entry.encode()) for entry in entries), more)


@dataclass(frozen=True, slots=True)
class Missing:
    """Leaves the receiver of an offer still wants, as half-open ranges in ascending order.

    A list may be cut short: the sender asks again until it is empty. `Missing.parse(m.encode()) == m`.
    """

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, indices: Iterable[int]) -> Missing:
        """The ranges of ascending `indices`, up to the number a message may hold."""
        ranges: list[tuple[int, int]] = []
        for index in indices:
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            elif len(ranges) < MAX_RANGES:
                ranges.append((index, index + 1))
            else:
                break
        return cls(tuple(ranges))

    def indices(self) -> Iterator[int]:
        for start, stop in self.ranges:
            yield from range(start, stop)

    def encode(self) -> bytes:
        return strictjson.dumps({"ranges": [list(pair) for pair in self.ranges]})

    @classmethod
    def parse(cls, data: bytes, *, leaves: int) -> Missing:
        """`leaves` is the signed tree size. Raises MalformedError `json.*`, `message.*`."""
        fields = _read(data, "the list of missing chunks")
        entries = fields.array("ranges", limit=MAX_RANGES)
        fields.done()
        ranges: list[tuple[int, int]] = []
        last = -1
        for entry in entries:
            pair = strictjson.Fields({"range": entry}, "message").integers("range", 0, leaves, limit=2)
            if len(pair) != 2 or not last < pair[0] < pair[1]:
                raise MalformedError("message.range", "ranges are no pairs, empty, adjacent or out of order")
            ranges.append((pair[0], pair[1]))
            last = pair[1]
        return cls(tuple(ranges))


@dataclass(frozen=True, slots=True)
class Commit:
    """Ends an offer: all chunks are there. Carries the ref under which to publish, if any.

    `Commit.parse(c.encode()) == c`.
    """

    ref: Envelope | None = None

    def encode(self) -> bytes:
        return strictjson.dumps({"ref": None if self.ref is None else self.ref.encode().decode()})

    @classmethod
    def parse(cls, data: bytes) -> Commit:
        """Raises MalformedError `json.*`, `message.*`, `envelope.*`."""
        fields = _read(data, "the commit")
        text = fields.optional("ref", lambda name: fields.string(name, limit=MAX_JSON_BYTES))
        fields.done()
        return cls(None if text is None else Envelope.parse(text.encode()))


@dataclass(frozen=True, slots=True)
class Attestations:
    """What auditors have signed about one artifact, nothing in it verified. `Attestations.parse(a.encode()) == a`."""

    envelopes: tuple[Envelope, ...]

    @classmethod
    def of(cls, envelopes: Iterable[Envelope]) -> Attestations:
        """As many as a message may hold."""
        kept: list[Envelope] = []
        size = 0
        for envelope in envelopes:
            size += 2 * len(envelope.encode())  # quotes are escaped inside the message's JSON
            if len(kept) == MAX_ATTESTATIONS or size > MAX_JSON_BYTES - MAX_MESSAGE_BYTES:
                break
            kept.append(envelope)
        return cls(tuple(kept))

    def encode(self) -> bytes:
        return strictjson.dumps({"attestations": [envelope.encode().decode() for envelope in self.envelopes]})

    @classmethod
    def parse(cls, data: bytes) -> Attestations:
        """Raises MalformedError `json.*`, `message.*`, `envelope.*`."""
        fields = _read(data, "the list of attestations")
        texts = fields.strings("attestations", limit=MAX_ATTESTATIONS, each=MAX_JSON_BYTES)
        fields.done()
        return cls(tuple(Envelope.parse(text.encode()) for text in texts))


@dataclass(frozen=True, slots=True)
class Related:
    """Other artifacts there that share the computation of a block with one. `Related.parse(r.encode()) == r`."""

    artifacts: tuple[ArtifactId, ...]

    def encode(self) -> bytes:
        return strictjson.dumps({"artifacts": [str(artifact) for artifact in self.artifacts]})

    @classmethod
    def parse(cls, data: bytes) -> Related:
        """Raises MalformedError `json.*`, `message.*`, `digest.syntax`."""
        fields = _read(data, "the list of related artifacts")
        entries = fields.array("artifacts", limit=MAX_ATTESTATIONS)
        fields.done()
        return cls(tuple(ArtifactId(Digest.parse(entry)) for entry in entries))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The answer to an offer or a commit: the artifact as this side names it, and whether all of it is here.

    `Accepted.parse(a.encode()) == a`.
    """

    artifact: ArtifactId
    complete: bool

    def encode(self) -> bytes:
        return strictjson.dumps({"artifact": str(self.artifact), "complete": self.complete})

    @classmethod
    def parse(cls, data: bytes) -> Accepted:
        """Raises MalformedError `json.*`, `message.*`, `digest.syntax`."""
        fields = _read(data, "the answer")
        accepted = cls(ArtifactId(fields.digest("artifact")), fields.boolean("complete"))
        fields.done()
        return accepted


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An error as it crosses the wire. `code` keeps its meaning on the other side; text is for people.

    `ErrorReply.parse(e.encode()) == e` for a reply made by `ErrorReply.of`.
    """

    code: str
    message: str
    hint: str = ""

    @classmethod
    def of(cls, error: CodedError) -> ErrorReply:
        return cls(error.code, _plain(error.message), _plain(error.hint))

    def encode(self) -> bytes:
        return strictjson.dumps({"code": self.code, "message": self.message, "hint": self.hint})

    @classmethod
    def parse(cls, data: bytes) -> ErrorReply:
        """Raises MalformedError `json.*`, `message.*`."""
        fields = _read(data, "the error")
        code = fields.string("code", limit=MAX_CODE_CHARS)
        if not _CODE.fullmatch(code):
            raise MalformedError("message.range", "an error code is two lower-case words joined by a dot")
        message = fields.string("message", limit=MAX_MESSAGE_BYTES)
        hint = fields.string("hint", limit=MAX_MESSAGE_BYTES)
        fields.done()
        return cls(code, message, hint)


def _plain(text: str) -> str:
    """`text` as one line that the other side accepts."""
    line = "".join(" " if strictjson.has_control(char) else char for char in text)
    return line.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
