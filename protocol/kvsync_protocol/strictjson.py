"""JSON read so that no two parsers can disagree about it: no duplicate keys, no NaN, capped (SPEC 1.2).

Writing is RFC 8785: compact, keys sorted, UTF-8. Signatures cover bytes, so nothing about trust depends
on that form; only an artifact's id does. `Fields` reads an object's members with their types and refuses
what is left over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import NoReturn, TypeVar

from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.limits import MAX_JSON_DEPTH

T = TypeVar("T")
MAX_SAFE_INTEGER = 2**53 - 1

_MARKS = re.compile(r'\\u[dD][89abAB]..\\u[dD][c-fC-F]..|\\u[dD][89a-fA-F]|\\.|["\[\]{}]', re.DOTALL)
"""Surrogate pair, half of one, any other escape, or a character that opens or closes something."""
_HALF_PAIR = 4  # the length only the second alternative has
_LAYOUT = re.compile("[\t\n]")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


def dumps(value: object) -> bytes:
    """Compact UTF-8 JSON with sorted keys: RFC 8785 for the values kvsync writes.

    Those are objects with ASCII keys, arrays, text, whole numbers below 2^53, booleans and null.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def loads(data: bytes, *, limit: int, what: str) -> dict[str, object]:
    """Parse one JSON object of at most `limit` bytes.

    Raises:
        MalformedError: `json.size`, `json.encoding`, `json.duplicate_key`, `json.number`,
            `json.depth`, `json.syntax` or `json.not_object`.
    """
    if len(data) > limit:
        raise MalformedError("json.size", f"{what} is larger than {limit} bytes", size=len(data))
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedError("json.encoding", f"{what} is not UTF-8") from error
    _scan(text, what)
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_no_constant, parse_float=_no_float, parse_int=_integer
        )
    except ProtocolError:
        raise
    except (ValueError, RecursionError) as error:
        raise MalformedError("json.syntax", f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise MalformedError("json.not_object", f"{what} is not a JSON object")
    return value


def _scan(text: str, what: str) -> None:
    """Bound nesting before the recursive parser sees it, and refuse escapes that are no character."""
    depth, quoted = 0, False
    for mark in _MARKS.finditer(text):
        found = mark.group()
        if found == '"':
            quoted = not quoted
        elif len(found) == _HALF_PAIR:
            raise MalformedError("json.encoding", f"{what} holds half a surrogate pair")
        elif quoted or len(found) > 1:
            continue
        elif found in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise MalformedError("json.depth", f"{what} is nested deeper than {MAX_JSON_DEPTH}")
        else:
            depth -= 1


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedError("json.duplicate_key", f"key {_shown(name)} stands twice in one object")
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise MalformedError("json.number", f"{text} is not JSON")


def _no_float(text: str) -> NoReturn:
    raise MalformedError("json.number", "only whole numbers are used on the wire")


def _integer(text: str) -> int:
    if text == "-0" or len(text) > 17 or abs(int(text)) > MAX_SAFE_INTEGER:
        raise MalformedError("json.number", "an integer is not below 2^53, or is -0")
    return int(text)


def _shown(name: str) -> str:
    """A peer's text, short and escaped, for a message."""
    return repr(name if len(name) <= 40 else f"{name[:39]}…")


def has_control(text: str) -> bool:
    """True when `text` holds a control character (C0, DEL or C1), which no text on the wire needs."""
    return _CONTROL.search(text) is not None


class Fields:
    """Typed reading of one JSON object. Every reader raises MalformedError with the family's codes:
    `<family>.missing`, `<family>.type`, `<family>.range`, `<family>.unknown`."""

    def __init__(self, source: object, family: str) -> None:
        self._family = family
        if not isinstance(source, dict):
            raise self._error("type", "expected a JSON object")
        self._left: dict[str, object] = dict(source)

    def _error(self, kind: str, message: str) -> MalformedError:
        return MalformedError(f"{self._family}.{kind}", message)

    def take(self, name: str) -> object:
        if name not in self._left:
            raise self._error("missing", f"field {name!r} is missing")
        return self._left.pop(name)

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self.take(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise self._error("type", f"field {name!r} is not of type {kind.__name__}")
        return value

    def string(self, name: str, *, limit: int) -> str:
        """Text of at most `limit` bytes of UTF-8, without control characters."""
        value = self._typed(name, str)
        if len(value) > limit or len(value.encode()) > limit or has_control(value):
            raise self._error("range", f"field {name!r} is too long or holds control characters")
        return value

    def text(self, name: str, *, limit: int) -> str:
        """As `string`, of several lines: tabs and line feeds may stand in it."""
        value = self._typed(name, str)
        if len(value) > limit or len(value.encode()) > limit or has_control(_LAYOUT.sub("", value)):
            raise self._error("range", f"field {name!r} is too long or holds control characters")
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._typed(name, int)
        if not low <= value <= high:
            raise self._error("range", f"field {name!r} is not in {low}..{high}")
        return value

    def boolean(self, name: str) -> bool:
        return self._typed(name, bool)

    def digest(self, name: str) -> Digest:
        return Digest.parse(self.take(name))

    def optional(self, name: str, read: Callable[[str], T]) -> T | None:
        """`read(name)` unless the member is absent or null."""
        if self._left.get(name) is None:
            self._left.pop(name, None)
            return None
        return read(name)

    def array(self, name: str, *, limit: int) -> list[object]:
        value = self._typed(name, list)
        if len(value) > limit:
            raise self._error("range", f"field {name!r} has more than {limit} items")
        return value

    def strings(self, name: str, *, limit: int, each: int) -> tuple[str, ...]:
        """At most `limit` texts of at most `each` bytes."""
        return tuple(
            Fields({name: item}, self._family).string(name, limit=each) for item in self.array(name, limit=limit)
        )

    def texts(self, name: str, *, limit: int, each: int) -> tuple[str, ...]:
        """As `strings`, each read as `text` is."""
        return tuple(
            Fields({name: item}, self._family).text(name, limit=each) for item in self.array(name, limit=limit)
        )

    def integers(self, name: str, low: int, high: int, *, limit: int) -> tuple[int, ...]:
        """At most `limit` whole numbers, each in low..high."""
        found = []
        for item in self.array(name, limit=limit):
            if type(item) is not int:
                raise self._error("type", f"field {name!r} holds something other than whole numbers")
            if not low <= item <= high:
                raise self._error("range", f"field {name!r} holds a number outside {low}..{high}")
            found.append(item)
        return tuple(found)

    def mapping(self, name: str) -> dict[str, object]:
        return self._typed(name, dict)

    def done(self) -> None:
        """Refuse members nobody read: a signed field that is ignored is a field that can lie."""
        if self._left:
            raise self._error("unknown", f"unknown field {_shown(min(self._left))}")
