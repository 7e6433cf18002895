"""Asking a peer to compute: what is asked, and how far it is (COMPUTE.md). Each reads strictly what it writes.

A request names a model by its fingerprints, never by a path, and its document by tokens or by text. Its id is drawn
by whoever asks and means something only between these two, so that asking again is not asking twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.limits import MAX_CODE_CHARS, MAX_JSON_BYTES, MAX_MESSAGE_BYTES, KiB, MiB

MODELS: Final = "/v1/models"
COMPUTATIONS: Final = "/v1/computations"
COMPUTATION: Final = "/v1/computations/{computation}"
CANCEL: Final = "/v1/computations/{computation}/cancel"

MAX_REQUEST_BYTES: Final = 10 * MiB
MAX_TEXT_BYTES: Final = 4 * MiB
MAX_REQUEST_TOKENS: Final = 1024 * KiB
MAX_MODELS: Final = 64
_ID = re.compile(r"[0-9a-f]{16}", re.ASCII)
STATES: Final = ("queued", "running", "done", "failed", "cancelled")


def check_computation_id(text: object) -> str:
    """Raises MalformedError `compute.id`."""
    if not isinstance(text, str) or not _ID.fullmatch(text):
        raise MalformedError("compute.id", "not a computation's id", hint="expected 16 lower-case hex digits")
    return text


@dataclass(frozen=True, slots=True)
class ComputeRequest:
    """Either `text` or `tokens`, not empty. `ComputeRequest.parse(r.encode()) == r`.

    Raises:
        MalformedError: `compute.id`, `compute.document`.
    """

    id: str
    compatibility: Digest
    numerics: Digest
    text: str | None = None
    tokens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_computation_id(self.id)
        if (self.text is None) == (self.tokens is None) or not (self.text or self.tokens):
            raise MalformedError("compute.document", "a computation has either a text or tokens")
        try:
            size = len((self.text or "").encode())
        except UnicodeEncodeError as error:
            raise MalformedError("compute.document", "the text is not Unicode") from error
        if size > MAX_TEXT_BYTES or len(self.tokens or ()) > MAX_REQUEST_TOKENS:
            raise MalformedError("compute.document", "the document is too long for one request")

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "id": self.id,
                "compatibility": str(self.compatibility),
                "numerics": str(self.numerics),
                "text": self.text,
                "tokens": None if self.tokens is None else list(self.tokens),
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> ComputeRequest:
        """Raises MalformedError `json.*`, `compute.*`, `digest.syntax`."""
        fields = strictjson.Fields(strictjson.loads(data, limit=MAX_REQUEST_BYTES, what="the request"), "compute")
        request = cls(
            check_computation_id(fields.take("id")),
            fields.digest("compatibility"),
            fields.digest("numerics"),
            fields.optional("text", lambda name: _text(fields.take(name))),
            fields.optional("tokens", lambda name: fields.integers(name, 0, 2**32 - 1, limit=MAX_REQUEST_TOKENS)),
        )
        fields.done()
        return request


@dataclass(frozen=True, slots=True)
class ComputeState:
    """How far a computation is: `done` of `total` in `unit`; `artifact` when it is done; `code` when it failed.

    `ahead` counts what is computed before it. `ComputeState.parse(s.encode()) == s`.
    """

    id: str
    state: str
    ahead: int = 0
    stage: str = ""
    done: int = 0
    total: int = 0
    unit: str = ""
    artifact: ArtifactId | None = None
    code: str = ""
    message: str = ""

    @property
    def final(self) -> bool:
        return self.state in ("done", "failed", "cancelled")

    def encode(self) -> bytes:
        return strictjson.dumps(
            {
                "id": self.id,
                "state": self.state,
                "ahead": self.ahead,
                "stage": self.stage,
                "done": self.done,
                "total": self.total,
                "unit": self.unit,
                "artifact": None if self.artifact is None else str(self.artifact),
                "code": self.code,
                "message": self.message,
            }
        )

    @classmethod
    def parse(cls, data: bytes) -> ComputeState:
        """Raises MalformedError `json.*`, `compute.*`, `digest.syntax`."""
        fields = strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what="the state"), "compute")
        most = strictjson.MAX_SAFE_INTEGER
        artifact = fields.optional("artifact", fields.digest)
        found = cls(
            check_computation_id(fields.take("id")),
            fields.string("state", limit=20),
            fields.integer("ahead", 0, most),
            fields.string("stage", limit=100),
            fields.integer("done", 0, most),
            fields.integer("total", 0, most),
            fields.string("unit", limit=20),
            None if artifact is None else ArtifactId(artifact),
            fields.string("code", limit=MAX_CODE_CHARS),
            fields.string("message", limit=MAX_MESSAGE_BYTES),
        )
        fields.done()
        if found.state not in STATES or (found.state == "done") != (found.artifact is not None):
            raise MalformedError("compute.state", "a computation is in no state that there is")
        return found


@dataclass(frozen=True, slots=True)
class Models:
    """What a peer computes with. `Models.parse(m.encode()) == m`."""

    offered: tuple[Fingerprints, ...]

    def encode(self) -> bytes:
        pairs = [
            {"compatibility": pair.compatibility.as_json(), "numerics": pair.numerics.as_json()}
            for pair in self.offered
        ]
        return strictjson.dumps({"models": pairs})

    @classmethod
    def parse(cls, data: bytes) -> Models:
        """Raises MalformedError `json.*`, `compute.*`, `fingerprint.*`."""
        fields = strictjson.Fields(strictjson.loads(data, limit=MAX_JSON_BYTES, what="the models"), "compute")
        offered = []
        for value in fields.array("models", limit=MAX_MODELS):
            entry = strictjson.Fields(value, "compute")
            offered.append(
                Fingerprints(
                    Fingerprint.parse(FingerprintKind.COMPATIBILITY, entry.take("compatibility")),
                    Fingerprint.parse(FingerprintKind.NUMERICS, entry.take("numerics")),
                )
            )
            entry.done()
        fields.done()
        return cls(tuple(offered))


def _text(value: object) -> str:
    """Documents hold line breaks and tabs, unlike every other text in a message."""
    if not isinstance(value, str):
        raise MalformedError("compute.type", "field 'text' is not text")
    return value
