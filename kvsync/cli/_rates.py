"""Rates as people write them."""

from __future__ import annotations

import re
from typing import Final

from kvsync.cli._render import size
from kvsync.errors import UsageError

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}
_RATE: Final = re.compile(r"([0-9]{1,13}(?:\.[0-9]{1,6})?) ?([kmg]i?|)(?:b(?:/s)?)?", re.ASCII | re.IGNORECASE)


def parse_rate(text: str) -> int:
    """Bytes per second: `5MB/s`, `512KiB/s`, `2.5M`; `0`, `none` or `off` for no limit.

    Raises:
        UsageError: `rate.syntax`, `rate.range`.
    """
    if text.lower() in ("none", "off"):
        return 0
    found = _RATE.fullmatch(text.strip())
    if found is None:
        raise UsageError("rate.syntax", f"{text!r} is not a rate", hint="5MB/s, 512KiB/s, or none")
    from kvsync.keys.peers import check_rate

    return check_rate(int(float(found.group(1)) * _UNITS[found.group(2).lower()]))


def rate(number: int) -> str:
    """A rate for people."""
    return f"{size(number)}/s" if number else "no limit"
