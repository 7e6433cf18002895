"""What each kind of job needs to know, read strictly before it is accepted.

`shown` is what may be told about a job: everything but the document, which is as private as the artifact
that is made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.daemon.asked import Asked
from kvsync.daemon.messages import JobKind
from kvsync.daemon.transfer_params import MAX_PEER_CHARS, PullParams, PushParams, fingerprints_json, read_fingerprints
from kvsync.errors import UsageError
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.group import COMPUTED, DType
from kvsync_protocol.limits import MAX_BOUNDARIES, MAX_NAME_CHARS, MAX_TOKENS, KiB, MiB
from kvsync_protocol.ref import check_name
from kvsync_protocol.strictjson import Fields

MAX_DOCUMENT_BYTES: Final = 4 * MiB
"""Of UTF-8 text in one job: about a million tokens, hours of prefill."""
MAX_DOCUMENT_TOKENS: Final = 1024 * KiB
MAX_PATH_BYTES: Final = 4 * KiB
_FAMILY: Final = "job"


@dataclass(frozen=True, slots=True)
class ComputeParams:
    """Make the artifact of a document: either its `text` or its `tokens`.

    `model` is an absolute path of a model directory; `dtype` None takes the one it was saved in. `template`
    is the digest of the chat template that shaped the document; `boundaries` are earlier cuts (SPEC 3). `asked` says
    which peer wants it, and under which limits.
    """

    model: Path
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    dtype: DType | None = None
    device: str = "cpu"
    name: str | None = None
    template: Digest | None = None
    boundaries: tuple[int, ...] = ()
    asked: Asked | None = None

    def __post_init__(self) -> None:
        if not self.model.is_absolute():
            raise UsageError("job.model", f"{self.model} is not an absolute path")
        _check_document(self.text, self.tokens)
        if self.name is not None:
            check_name(self.name)

    def as_json(self) -> dict[str, object]:
        found = self._small()
        if self.boundaries:
            found["boundaries"] = list(self.boundaries)
        return found | _document_json(self.text, self.tokens)

    def shown(self) -> dict[str, object]:
        found = self._small()
        if self.boundaries:
            found["boundary_count"] = len(self.boundaries)
        return found | _document_shown(self.text, self.tokens)

    def _small(self) -> dict[str, object]:
        found: dict[str, object] = {"model": str(self.model), "device": self.device}
        if self.dtype is not None:
            found["dtype"] = self.dtype.value
        if self.name is not None:
            found["name"] = self.name
        if self.template is not None:
            found["template"] = str(self.template)
        if self.asked is not None:
            found["asked"] = self.asked.as_json()
        return found

    @classmethod
    def parse(cls, value: object) -> ComputeParams:
        """Raises MalformedError `job.*`, `ref.name`; UsageError `job.*`."""
        fields = Fields(value, _FAMILY)
        dtype = fields.optional("dtype", lambda name: fields.string(name, limit=16))
        computed = [known.value for known in COMPUTED]
        if dtype is not None and dtype not in computed:
            raise MalformedError("job.dtype", f"no model computes in {dtype!r}", hint=", ".join(computed))
        params = cls(
            model=Path(fields.string("model", limit=MAX_PATH_BYTES)),
            text=fields.optional("text", lambda name: _text(fields.take(name))),
            tokens=_read_tokens(fields),
            dtype=None if dtype is None else DType(dtype),
            device=fields.optional("device", lambda name: fields.string(name, limit=20)) or "cpu",
            name=fields.optional("name", lambda name: fields.string(name, limit=4 * MAX_NAME_CHARS)),
            template=fields.optional("template", fields.digest),
            boundaries=fields.optional(
                "boundaries", lambda name: fields.integers(name, 1, MAX_TOKENS, limit=MAX_BOUNDARIES)
            )
            or (),
            asked=fields.optional("asked", lambda name: Asked.parse(fields.take(name))),
        )
        fields.done()
        return params


@dataclass(frozen=True, slots=True)
class AskParams:
    """Have a known peer compute a document with the model of this compatibility digest, and fetch the result.

    `fingerprints` are those of the model here, if it is here; `expect` is the digest of the token ids that the text
    must become. `name` is given to the result by this node.
    """

    peer: str
    compatibility: Digest
    text: str | None = None
    tokens: tuple[int, ...] | None = None
    fingerprints: Fingerprints | None = None
    expect: Digest | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_document(self.text, self.tokens)
        if self.name is not None:
            check_name(self.name)

    def as_json(self) -> dict[str, object]:
        found = self._small() | _document_json(self.text, self.tokens)
        if self.fingerprints is not None:
            found["fingerprints"] = fingerprints_json(self.fingerprints)
        return found

    def shown(self) -> dict[str, object]:
        return self._small() | _document_shown(self.text, self.tokens)

    def _small(self) -> dict[str, object]:
        found: dict[str, object] = {"peer": self.peer, "compatibility": str(self.compatibility)}
        if self.expect is not None:
            found["expect"] = str(self.expect)
        if self.name is not None:
            found["name"] = self.name
        return found

    @classmethod
    def parse(cls, value: object) -> AskParams:
        """Raises MalformedError `job.*`, `fingerprint.*`, `ref.name`; UsageError `job.*`."""
        fields = Fields(value, _FAMILY)
        params = cls(
            fields.string("peer", limit=MAX_PEER_CHARS),
            fields.digest("compatibility"),
            fields.optional("text", lambda name: _text(fields.take(name))),
            _read_tokens(fields),
            fields.optional("fingerprints", lambda name: read_fingerprints(fields.take(name))),
            fields.optional("expect", fields.digest),
            fields.optional("name", lambda name: fields.string(name, limit=4 * MAX_NAME_CHARS)),
        )
        fields.done()
        return params


JobParams = ComputeParams | PullParams | PushParams | AskParams


def parse_params(kind: JobKind, value: object) -> JobParams:
    """Raises what the kind's own `parse` raises."""
    match kind:
        case JobKind.COMPUTE:
            return ComputeParams.parse(value)
        case JobKind.PULL:
            return PullParams.parse(value)
        case JobKind.PUSH:
            return PushParams.parse(value)
        case JobKind.ASK:
            return AskParams.parse(value)


def _check_document(text: str | None, tokens: tuple[int, ...] | None) -> None:
    """Raises UsageError `job.document`, `job.empty_document`, `job.document_size`, `job.encoding`."""
    if (text is None) == (tokens is None):
        raise UsageError("job.document", "give either text or tokens")
    if text == "" or tokens == ():
        raise UsageError("job.empty_document", "the document is empty")
    if text is not None and _encoded_size(text) > MAX_DOCUMENT_BYTES:
        raise UsageError(
            "job.document_size",
            f"the document is larger than {MAX_DOCUMENT_BYTES} bytes",
            hint="split it, or compute it without the daemon",
        )
    if len(tokens or ()) > MAX_DOCUMENT_TOKENS:
        raise UsageError("job.document_size", f"the document has more than {MAX_DOCUMENT_TOKENS} tokens")


def _document_json(text: str | None, tokens: tuple[int, ...] | None) -> dict[str, object]:
    return {"text": text} if text is not None else {"tokens": list(tokens or ())}


def _document_shown(text: str | None, tokens: tuple[int, ...] | None) -> dict[str, object]:
    return {"text_bytes": len(text.encode())} if text is not None else {"token_count": len(tokens or ())}


def _read_tokens(fields: Fields) -> tuple[int, ...] | None:
    return fields.optional("tokens", lambda name: fields.integers(name, 0, 2**32 - 1, limit=MAX_DOCUMENT_TOKENS))


def _text(value: object) -> str:
    """Documents hold line breaks and tabs, unlike every other text in a message."""
    if not isinstance(value, str):
        raise MalformedError("job.type", "field 'text' is not text")
    return value


def _encoded_size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError("job.encoding", "the document is not Unicode text") from error
