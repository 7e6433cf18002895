"""JSON read so that no two parsers can disagree about it: no duplicate keys, no NaN, capped.

Writing is plain compact JSON with sorted keys; signatures cover bytes, so nothing depends on
canonical form. `Fields` reads an object's members with their types and refuses what is left over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NoReturn, TypeVar

from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MalformedError, ProtocolError
from kvsync_protocol.limits import MAX_JSON_DEPTH

T = TypeVar("T")
MAX_SAFE_INTEGER = 2**53 - 1


def dumps(value: object) -> bytes:
    """Compact UTF-8 JSON with sorted keys."""
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
    _check_depth(text, what)
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


def _check_depth(text: str, what: str) -> None:
    """Bound nesting before the recursive parser sees it; brackets inside strings only over-count."""
    depth = 0
    for char in text:
        if char in "[{":
            depth += 1
            if depth > MAX_JSON_DEPTH:
                raise MalformedError("json.depth", f"{what} is nested deeper than {MAX_JSON_DEPTH}")
        elif char in "]}":
            depth = max(0, depth - 1)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise MalformedError("json.duplicate_key", f"key {twice!r} stands twice in one object", key=twice)
    return found


def _no_constant(text: str) -> NoReturn:
    raise MalformedError("json.number", f"{text} is not JSON")


def _no_float(text: str) -> NoReturn:
    raise MalformedError("json.number", "only whole numbers are used on the wire")


def _integer(text: str) -> int:
    if len(text) > 17 or abs(int(text)) > MAX_SAFE_INTEGER:
        raise MalformedError("json.number", "integer beyond 2^53")
    return int(text)


class Fields:
    """Typed reading of one JSON object. Every reader raises MalformedError with the family's codes:
    `<family>.missing`, `<family>.type`, `<family>.range`, `<family>.unknown`."""

    def __init__(self, source: object, family: str) -> None:
        if not isinstance(source, dict):
            raise MalformedError(f"{family}.type", "expected a JSON object")
        self._left: dict[str, object] = dict(source)
        self._family = family

    def take(self, name: str) -> object:
        if name not in self._left:
            raise MalformedError(f"{self._family}.missing", f"field {name!r} is missing", field=name)
        return self._left.pop(name)

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self.take(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise MalformedError(f"{self._family}.type", f"field {name!r} is not of type {kind.__name__}", field=name)
        return value

    def string(self, name: str, *, limit: int) -> str:
        value = self._typed(name, str)
        if len(value.encode("utf-8", "surrogatepass")) > limit or any(0xD800 <= ord(c) <= 0xDFFF for c in value):
            raise MalformedError(f"{self._family}.range", f"field {name!r} is too long or not Unicode", field=name)
        return value

    def integer(self, name: str, low: int, high: int) -> int:
        value = self._typed(name, int)
        if not low <= value <= high:
            raise MalformedError(f"{self._family}.range", f"field {name!r} is not in {low}..{high}", field=name)
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
            raise MalformedError(f"{self._family}.range", f"field {name!r} has more than {limit} items", field=name)
        return value

    def mapping(self, name: str) -> dict[str, object]:
        return self._typed(name, dict)

    def done(self) -> None:
        """Refuse members nobody read: a signed field that is ignored is a field that can lie."""
        if self._left:
            name = min(self._left)
            raise MalformedError(f"{self._family}.unknown", f"unknown field {name!r}", field=name)
