"""The two written forms of a verifier spec, and the check that parameters are strict JSON.

Knows no verifier: whether a parameter exists and what it means is the verifier's own matter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TypeAlias

from kvsync.errors import UsageError
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import MAX_JSON_DEPTH, MiB
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER, loads

JsonValue: TypeAlias = "bool | int | str | list[JsonValue] | dict[str, JsonValue] | None"
"""Strict JSON: whole numbers only; a decimal figure is text, such as `"0.01"`."""

Parts: TypeAlias = "tuple[str, str | None, dict[str, JsonValue]]"
"""Name, version, parameters."""

MAX_SPEC_BYTES = 1 * MiB
_NAME = re.compile(r"[a-z][a-z0-9_.-]{0,63}", re.ASCII)
_KEY = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)
_BARE = re.compile(r"[^,]*")
_DECODER = json.JSONDecoder()


def read_text(text: str) -> Parts:
    """`NAME`, `NAME:key=value,…`, or a table written as a JSON object.

    Raises:
        UsageError: `verifier.syntax`.
    """
    if text.lstrip().startswith("{"):
        return read_table(_json(text))
    name, colon, rest = text.partition(":")
    parameters: dict[str, JsonValue] = {}
    at = 0
    while colon and at <= len(rest):
        key, equals, _ = rest[at:].partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise _syntax("expected key=value after the verifier's name and a colon")
        if key in parameters:
            raise _syntax(f"parameter {key} stands twice")
        parameters[key], at = _value(rest, at + len(key) + 1)
        if at == len(rest):
            break
        if rest[at] != ",":
            raise _syntax(f"expected a comma after parameter {key}")
        at += 1
    return _checked(name, None, parameters)


def read_table(table: Mapping[str, object]) -> Parts:
    """`name`, and perhaps `version` and `parameters`; nothing else.

    Raises:
        UsageError: `verifier.syntax`.
    """
    unknown = set(table) - {"name", "version", "parameters"}
    if unknown:
        raise _syntax(f"unknown member {min(unknown)!r}")
    return _checked(table.get("name"), table.get("version"), table.get("parameters", {}))


def _value(rest: str, at: int) -> tuple[JsonValue, int]:
    """The value that begins at `at`, and where it ends."""
    if rest[at : at + 1] in ('"', "[", "{"):
        try:
            _, end = _DECODER.raw_decode(rest, at)
        except (ValueError, RecursionError) as error:
            raise _syntax("a value that begins like JSON is none") from error
        # Read again, strictly: duplicate keys, depth, half surrogate pairs.
        value: JsonValue = _json(f'{{"value":{rest[at:end]}}}')["value"]  # type: ignore[assignment]
        return value, end
    found = _BARE.match(rest, at)
    return (found.group().strip(), found.end()) if found else ("", at)


def _json(text: str) -> dict[str, object]:
    try:
        return loads(text.encode(), limit=MAX_SPEC_BYTES, what="the verifier spec")
    except (MalformedError, UnicodeEncodeError) as error:
        raise _syntax(str(getattr(error, "message", "the verifier spec is no text"))) from error


def _checked(name: object, version: object, parameters: object) -> Parts:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _syntax(f"not the name of a verifier: {str(name)[:40]!r}")
    if version is not None and (not isinstance(version, str) or not 0 < len(version) <= 64):
        raise _syntax("a version is a short text")
    if not isinstance(parameters, Mapping):
        raise _syntax("parameters are a table")
    checked: dict[str, JsonValue] = {}
    for key, value in parameters.items():
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise _syntax(f"not the name of a parameter: {str(key)[:40]!r}")
        checked[key] = strict(value)
    return name, version, checked


def strict(value: object, depth: int = 1) -> JsonValue:
    """`value`, when it is strict JSON.

    Raises:
        UsageError: `verifier.syntax`.
    """
    if depth > MAX_JSON_DEPTH - 3:
        raise _syntax("a parameter is nested too deep")
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise _syntax("a whole number is not below 2^53", hint="write it as text")
        return value
    if isinstance(value, list | tuple):
        return [strict(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return {_member(key): strict(item, depth + 1) for key, item in value.items()}
    raise _syntax(f"a parameter is of type {type(value).__name__}", hint='decimal figures are text, such as "0.01"')


def _member(key: object) -> str:
    if not isinstance(key, str):
        raise _syntax("a member's name is text")
    return key


def _syntax(message: str, *, hint: str = "NAME, or NAME:key=value,key=value") -> UsageError:
    return UsageError("verifier.syntax", message, hint=hint)
