"""Figures in signed records: finite doubles as decimal text, each with exactly one spelling (SPEC 7.6).

JSON numbers have many spellings and no agreed precision; here `0` is zero and everything else is the shortest
decimal that reads back as the same double, written `d.ddde±n` without needless zeros: `1.5e-5`, `2e0`, `-3.25e2`.
NaN and infinities have no spelling.
"""

from __future__ import annotations

import math
import re

from kvsync_protocol.errors import MalformedError

_SPELLING = re.compile(r"0|-?[1-9](?:\.[0-9]{0,16}[1-9])?e(?:0|-?[1-9][0-9]{0,2})", re.ASCII)


def spell(value: float) -> str:
    """The one spelling of a finite number; `read(spell(x)) == x`.

    Raises:
        MalformedError: `receipt.figure` for NaN and infinities.
    """
    if not math.isfinite(value):
        raise MalformedError("receipt.figure", f"{value} is no figure: only finite numbers are")
    if value == 0:
        return "0"
    sign, digits, exponent = _shortest(value)
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{exponent}"


def _shortest(value: float) -> tuple[str, str, int]:
    """Sign, significant digits without zeros at either end, and the exponent of the first digit."""
    mantissa, _, power = repr(float(value)).lower().partition("e")
    sign = "-" if mantissa.startswith("-") else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    leading = len(whole + fraction) - len(digits)
    return sign, digits.rstrip("0"), int(power or 0) + len(whole) - 1 - leading


def read(text: object) -> float:
    """The number of a spelling.

    Raises:
        MalformedError: `receipt.figure` for anything but the one spelling of a finite number.
    """
    if isinstance(text, str) and _SPELLING.fullmatch(text):
        value = float(text)
        if math.isfinite(value) and spell(value) == text:
            return value
    raise MalformedError("receipt.figure", "not a figure in its one spelling", hint="for example 1.5e-5, 2e0 or 0")
