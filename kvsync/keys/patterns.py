"""Patterns of names: a whole name, `team/*` for every name below `team`, or `*` for all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvsync.errors import UsageError
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.ref import check_name

MAX_PATTERNS: Final = 64
_BELOW: Final = "/*"


def check_pattern(text: str) -> str:
    """Raises UsageError `names.pattern`."""
    try:
        if text != "*":
            check_name(text.removesuffix(_BELOW))
    except MalformedError as error:
        raise UsageError(
            "names.pattern", f"{text!r} is not a pattern of names", hint="for example team/handbook, team/* or *"
        ) from error
    return text


def check_patterns(texts: Iterable[str]) -> tuple[str, ...]:
    """Each checked and kept once. Raises UsageError `names.pattern`."""
    found = tuple(dict.fromkeys(check_pattern(text) for text in texts))
    if len(found) > MAX_PATTERNS:
        raise UsageError("names.pattern", f"more than {MAX_PATTERNS} patterns")
    return found


def covers(patterns: Iterable[str], name: str) -> bool:
    """True when one of the patterns matches; no patterns match nothing."""
    return any(
        pattern in ("*", name) or (pattern.endswith(_BELOW) and name.startswith(pattern[:-1])) for pattern in patterns
    )
