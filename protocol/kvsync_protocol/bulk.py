"""The bulk lane's frames: fixed size, so there is nothing to parse that a peer could stretch (SPEC 8.2).

    request   magic 4 | verb u8 | encoding u8 | 0 u16 | artifact 32 | leaf index u32 | length u32
    reply     magic 4 | status u8 | encoding u8 | 0 u16 | length u32 | 0 u32

All integers big-endian. `length` counts bytes on the wire after the frame: of a PUT's body, or of
an OK reply to a GET. The size of the chunk itself is never in a frame: both sides take it from the
signed layout. A GET's encoding is the one the getter can read besides identity; the reply names the one
used. Requests may be pipelined; replies come in order.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any

from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_CHUNK_BYTES, KiB

ALPN = "kvsync-bulk/1"
_REQUEST = struct.Struct(">4sBBH32sII")
_REPLY = struct.Struct(">4sBBHII")
REQUEST_BYTES = _REQUEST.size
REPLY_BYTES = _REPLY.size
_REQUEST_MAGIC = b"KVq1"
_REPLY_MAGIC = b"KVr1"

MAX_WIRE_BYTES = MAX_CHUNK_BYTES + 64 * KiB
"""zstd may grow incompressible input by a few bytes per block."""


class Verb(enum.IntEnum):
    GET = 1
    PUT = 2


class Encoding(enum.IntEnum):
    """How a chunk's bytes are written on the wire; never part of its identity."""

    IDENTITY = 0
    ZSTD = 1
    PLANES = 2


class Status(enum.IntEnum):
    OK = 0
    NOT_FOUND = 1  # absent, or not for this peer: the two are not told apart
    REFUSED = 2  # a PUT nobody asked for, or without the role
    CORRECT_AND_RESEND = 3  # the bytes do not have the signed digest
    BUSY = 4  # at a limit; try later
    FULL = 5  # no room left
    FAILED = 6  # this side's fault


_VERBS, _ENCODINGS, _STATUSES = frozenset(Verb), frozenset(Encoding), frozenset(Status)  # looked at for every frame


@dataclass(frozen=True, slots=True)
class BulkRequest:
    """`BulkRequest.decode(r.encode()) == r`."""

    verb: Verb
    artifact: ArtifactId
    index: int
    encoding: Encoding = Encoding.IDENTITY
    length: int = 0

    def encode(self) -> bytes:
        return _REQUEST.pack(_REQUEST_MAGIC, self.verb, self.encoding, 0, self.artifact.raw, self.index, self.length)

    @classmethod
    def decode(cls, frame: bytes | bytearray) -> BulkRequest:
        """Raises MalformedError: `bulk.frame`, `bulk.length`."""
        magic, verb, encoding, zero, raw, index, length = _unpack(_REQUEST, frame)
        if magic != _REQUEST_MAGIC or zero or verb not in _VERBS or encoding not in _ENCODINGS:
            raise MalformedError("bulk.frame", "not a bulk request")
        if length > MAX_WIRE_BYTES or (verb == Verb.GET) != (length == 0):
            raise MalformedError("bulk.length", "a PUT has a body of at most one chunk, a GET has none")
        return cls(Verb(verb), ArtifactId(Digest(raw)), index, Encoding(encoding), length)


@dataclass(frozen=True, slots=True)
class BulkReply:
    """`BulkReply.decode(r.encode()) == r`."""

    status: Status
    encoding: Encoding = Encoding.IDENTITY
    length: int = 0

    def encode(self) -> bytes:
        return _REPLY.pack(_REPLY_MAGIC, self.status, self.encoding, 0, self.length, 0)

    @classmethod
    def decode(cls, frame: bytes | bytearray) -> BulkReply:
        """Raises MalformedError: `bulk.frame`, `bulk.length`."""
        magic, status, encoding, zero, length, rest = _unpack(_REPLY, frame)
        if magic != _REPLY_MAGIC or zero or rest or status not in _STATUSES or encoding not in _ENCODINGS:
            raise MalformedError("bulk.frame", "not a bulk reply")
        if length > MAX_WIRE_BYTES or (status != Status.OK and length):
            raise MalformedError("bulk.length", "only an OK reply has a body, of at most one chunk")
        return cls(Status(status), Encoding(encoding), length)


def _unpack(shape: struct.Struct, frame: bytes | bytearray) -> tuple[Any, ...]:
    if len(frame) != shape.size:
        raise MalformedError("bulk.frame", "a frame of the wrong size")
    return shape.unpack(frame)
