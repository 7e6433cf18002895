"""`Failure`: an error that crosses a process, a socket or a database and is the same error on the other side.

Knows the error classes, not what fails.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Self

from kvsync.errors import EXIT_STATUS, KvsyncError
from kvsync_protocol import strictjson
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import KiB
from kvsync_protocol.strictjson import Fields

MAX_TEXT_BYTES: Final = 4 * KiB
_FAMILY: Final = "failure"
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]+")


@dataclass(frozen=True, slots=True)
class Failure:
    """A CodedError on its way through a pipe or a database; exit statuses follow from its class, so that is kept."""

    kind: str
    code: str
    message: str
    hint: str = ""
    fields: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, error: CodedError) -> Failure:
        kind = next((k.__name__ for k in type(error).__mro__ if k in EXIT_STATUS), KvsyncError.__name__)
        data = {name: _data(value) for name, value in error.fields.items()}
        if len(strictjson.dumps(data)) > MAX_TEXT_BYTES:
            data = {}
        return cls(kind, error.code, _line(error.message), _line(error.hint), data)

    def error(self) -> CodedError:
        """The error again; one of an unknown class becomes a plain KvsyncError."""
        kinds: dict[str, type[CodedError]] = {kind.__name__: kind for kind in EXIT_STATUS}
        return kinds.get(self.kind, KvsyncError)(self.code, self.message, hint=self.hint, **self.fields)

    def as_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "code": self.code,
            "message": self.message,
            "hint": self.hint,
            "fields": dict(self.fields),
        }

    @classmethod
    def parse(cls, value: object) -> Self:
        """Raises MalformedError `failure.*`."""
        fields = Fields(value, _FAMILY)
        failure = cls(
            fields.string("kind", limit=100),
            fields.string("code", limit=100),
            fields.string("message", limit=MAX_TEXT_BYTES),
            fields.string("hint", limit=MAX_TEXT_BYTES),
            fields.mapping("fields"),
        )
        fields.done()
        return failure


def _data(value: object) -> object:
    """A value of an error's fields as the API can carry it: whole numbers, text, and lists of them."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) <= strictjson.MAX_SAFE_INTEGER:
        return value
    if isinstance(value, list | tuple):
        return [_data(item) for item in value]
    return _line(str(value))


def _line(text: str) -> str:
    """One line that every reader accepts: no control characters, no lone surrogates, not too long."""
    clean = _CONTROL.sub(" ", text).encode("utf-8", "replace")
    return clean[:MAX_TEXT_BYTES].decode("utf-8", "ignore")
