"""Typed reading of a verifier's parameters, whether they come from JSON or from a command line's text.

What was read, defaults included and in its JSON type, is what the verifier states as its parameters: reading that
again gives the same. Knows no verifier.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NoReturn, TypeVar

from kvsync.errors import UsageError
from kvsync.library.sandbox.limits import plain_name
from kvsync.library.verifiers.spec_text import JsonValue
from kvsync_protocol.limits import KiB

T = TypeVar("T")
MAX_VALUE_BYTES = 256 * KiB
_WHOLE = re.compile(r"-?[0-9]{1,16}", re.ASCII)
_DECIMAL = re.compile(r"[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)


class Parameters:
    """The parameters of one verifier, each read once. Every reader raises UsageError `verifier.parameter`."""

    def __init__(self, verifier: str, given: Mapping[str, JsonValue]) -> None:
        self._verifier = verifier
        self._left = dict(given)
        self.read: dict[str, JsonValue] = {}

    def refuse(self, message: str, *, hint: str = "") -> NoReturn:
        raise UsageError("verifier.parameter", f"{self._verifier}: {message}", hint=hint)

    def _take(self, name: str, default: JsonValue) -> JsonValue:
        value = self._left.pop(name, None)
        if value is None:
            value = default
        if value is None:
            self.refuse(f"parameter {name} is missing", hint=f"--verifier '{self._verifier}:{name}=…'")
        try:
            size = len(json.dumps(value, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            self.refuse(f"parameter {name} holds half a surrogate pair")
        if size > MAX_VALUE_BYTES:
            self.refuse(f"parameter {name} is larger than {MAX_VALUE_BYTES} bytes")
        return value

    def _keep(self, name: str, value: T) -> T:
        self.read[name] = value  # type: ignore[assignment]
        return value

    def json(self, name: str) -> JsonValue:
        """Any value but null."""
        return self._keep(name, self._take(name, None))

    def text(self, name: str, default: str | None = None) -> str:
        """Text; a whole number counts as its digits."""
        value = self._take(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value)
        if not isinstance(value, str):
            self.refuse(f"parameter {name} is not text")
        return self._keep(name, value)

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        value = self.text(name, default)
        if value not in options:
            self.refuse(f"parameter {name} is not one of {', '.join(options)}")
        return value

    def truth(self, name: str, default: bool) -> bool:
        value = self._take(name, default)
        if isinstance(value, str) and value in ("true", "false"):
            value = value == "true"
        if not isinstance(value, bool):
            self.refuse(f"parameter {name} is neither true nor false")
        return self._keep(name, value)

    def integer(self, name: str, low: int, high: int, default: int) -> int:
        value = self._take(name, default)
        if isinstance(value, str) and _WHOLE.fullmatch(value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            self.refuse(f"parameter {name} is not a whole number in {low}..{high}")
        return self._keep(name, value)

    def tolerance(self, name: str) -> Fraction:
        """A decimal figure of at least 0, as text; absent is 0."""
        value = self.text(name, "0")
        if not _DECIMAL.fullmatch(value):
            self.refuse(f"parameter {name} is not a decimal figure such as 0.01")
        return Fraction(value)

    def texts(self, name: str, default: Sequence[str] | None = None, *, limit: int = 256) -> list[str]:
        """A list of texts."""
        value = self._take(name, None if default is None else list(default))
        if not isinstance(value, list) or len(value) > limit or not all(isinstance(each, str) for each in value):
            self.refuse(f"parameter {name} is not a list of at most {limit} texts", hint=f'{name}=["a", "b"]')
        return self._keep(name, [str(each) for each in value])

    def files(self, name: str) -> dict[str, str]:
        """File names and their texts; absent is none."""
        value = self._take(name, {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            self.refuse(f"parameter {name} is not a table of file names and texts")
        if not all(plain_name(file) for file in value):
            self.refuse(f"parameter {name} holds something other than plain file names")
        return self._keep(name, {file: str(text) for file, text in value.items()})

    def done(self) -> dict[str, JsonValue]:
        """What was read; refuses what nobody asked for, since a misspelt parameter must not be ignored."""
        if self._left:
            self.refuse(f"there is no parameter {min(self._left)!r}")
        return dict(self.read)
