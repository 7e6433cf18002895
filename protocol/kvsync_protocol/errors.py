"""Errors shared by every part of kvsync: one tree, stable codes, a hint, data in fields.

CodedError
├── ProtocolError            bytes from elsewhere do not mean what they must
│   ├── MalformedError       not parseable under the rules, or over a limit
│   ├── VersionError         well formed, but of a version this build does not read
│   ├── IntegrityError       bytes differ from what was signed or hashed
│   ├── TrustError           signed, but not by anyone who counts here
│   └── MismatchError        sound, but not for this model, host or token sequence
└── kvsync.errors.KvsyncError   this host: store, engine, daemon, peers (see there)

A parser raises ProtocolError or returns; any other exception out of a parser is a bug. Codes are
part of the interface: they appear in JSON, on the wire and in test vectors, and are never reused
with another meaning. Texts and hints may change at any time.
"""

from __future__ import annotations


class CodedError(Exception):
    """An error a program can act on: `code` is stable, `fields` holds the data, `hint` what to do."""

    def __init__(self, code: str, message: str, *, hint: str = "", **fields: object) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.fields = fields

    def as_dict(self) -> dict[str, object]:
        """The error as plain JSON values, for `--json` and for replies on the wire."""
        shown: dict[str, object] = {"code": self.code, "message": self.message}
        if self.hint:
            shown["hint"] = self.hint
        if self.fields:
            shown["fields"] = {name: _plain(value) for name, value in self.fields.items()}
        return shown


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value)


class ProtocolError(CodedError):
    """Bytes from elsewhere that must not be used."""


class MalformedError(ProtocolError):
    """Not parseable under the rules of SPEC, or larger than its limit."""


class VersionError(ProtocolError):
    """Well formed, but written by a version this build does not read."""


class IntegrityError(ProtocolError):
    """Bytes that differ from what was signed or hashed."""


class TrustError(ProtocolError):
    """A signature is missing, wrong, or by nobody who is trusted here."""


class MismatchError(ProtocolError):
    """Sound bytes that belong to another model, other arithmetic or other tokens."""
