"""Where in a model's text the answer stands: every rule there is, in one place.

A rule is a pure function of the text and finds one place or none; it never judges. Rules by name:

| rule | takes |
|---|---|
| `whole` | all of the text |
| `line` | the first line that is not blank |
| `sentence` | that line up to its first `.`, `!` or `?` before white space |
| `last_line` | the last line that is not blank |
| `boxed` | the inside of the last `\\boxed{…}` or `\\fbox{…}` whose braces close |
| `marked` | what follows the last `answer is`, `answer:`, `answer =` or `####`, to the end of that line |
| `answer` | `boxed` where there is one, else `marked`, else `last_line` |
| `code` | the last fenced block tagged `python`, else the last fenced block, else all; the end closes a block |
| `json` | the last fenced block that is JSON, else the last object or array in the text that is JSON |

Numbers are read by `last_number` and `first_number`; `answer_number` says which number of a text answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from kvsync_protocol.limits import KiB

MAX_TEXT = 256 * KiB  # characters of a candidate that are looked at; the last ones, since answers stand at the end
_MAX_STARTS = 200  # places where a box or JSON may begin

_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s{0,8}\{")
_MARK: Final = re.compile(r"(?:\banswer(?:\s{1,4}is\b|\s{0,4}[:=])|####)[:\s]{0,8}", re.IGNORECASE)
_FENCE: Final = re.compile(
    r"^[ \t]{0,8}```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]{0,8}```|\Z)", re.MULTILINE | re.DOTALL
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s")
_NUMBER: Final = re.compile(
    r"(?<![\w.])[-+−]?\s?\$?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,400})(?P<part>\.[0-9]{1,400})?"
    r"(?P<power>[eE][+-]?[0-9]{1,3})?(?:\s?/\s?(?P<under>[0-9]{1,400})(?![\d/.]))?(?!\d|\.\d)",
    re.ASCII,
)


def whole(text: str) -> str:
    return text


def line(text: str) -> str | None:
    return next((found for each in text.splitlines() if (found := each.strip())), None)


def sentence(text: str) -> str | None:
    found = line(text)
    return None if found is None else _SENTENCE_END.split(found, maxsplit=1)[0]


def last_line(text: str) -> str | None:
    return next((found for each in reversed(text.splitlines()) if (found := each.strip())), None)


def boxed(text: str) -> str | None:
    for start in reversed([found.end() for found in _BOX.finditer(text)][-_MAX_STARTS:]):
        depth = 1
        for at in range(start, len(text)):
            if text[at] in "{}" and text[at - 1] != "\\":
                depth += 1 if text[at] == "{" else -1
            if depth == 0:
                return text[start:at].strip()
            if at - start > 4 * KiB:
                break
    return None


def marked(text: str) -> str | None:
    ends = [found.end() for found in _MARK.finditer(text)]
    return (line(text[ends[-1] :].partition("\n")[0]) or None) if ends else None


def answer(text: str) -> str | None:
    return next((found for rule in (boxed, marked, last_line) if (found := rule(text)) is not None), None)


def code(text: str) -> str:
    blocks = _FENCE.findall(text)
    tagged = [body for tag, body in blocks if tag.lower() in ("python", "py", "python3")]
    return tagged[-1] if tagged else blocks[-1][1] if blocks else text


def json_block(text: str) -> str | None:
    for _, body in reversed(_FENCE.findall(text)):
        if _is_json(body):
            return str(body).strip()
    decoder, found, at, starts = json.JSONDecoder(), None, 0, 0
    while starts < _MAX_STARTS and (start := _next_start(text, at)) >= 0:
        starts += 1
        try:
            _, at = decoder.raw_decode(text, start)
            found = text[start:at]
        except (ValueError, RecursionError):
            at = start + 1
    return found


def _next_start(text: str, at: int) -> int:
    return min((found for mark in "{[" if (found := text.find(mark, at)) >= 0), default=-1)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


RULES: Final[dict[str, Callable[[str], str | None]]] = {
    "whole": whole,
    "line": line,
    "sentence": sentence,
    "last_line": last_line,
    "boxed": boxed,
    "marked": marked,
    "answer": answer,
    "code": code,
    "json": json_block,
}


def take(rule: str, text: str) -> str | None:
    """What `rule` finds in the last `MAX_TEXT` characters of `text`."""
    return RULES[rule](text[-MAX_TEXT:])


def numbers(text: str) -> list[Fraction]:
    """Every number of `text`, in order: `-3`, `1,234.5`, `2e3`, `3/4`, `$7`, `5kg`, `50%` (which is 50).

    Digits that follow a letter (`x2`) or stand in `1.5.2` are none; neither are NaN, infinities and `1/0`. A minus
    between a space and a digit is a sign, in `3 - 4` it is not.
    """
    return [value for found in _NUMBER.finditer(text[-MAX_TEXT:]) if (value := _value(found)) is not None]


def _value(found: re.Match[str]) -> Fraction | None:
    digits = found["whole"].replace(",", "") + (found["part"] or "") + (found["power"] or "")
    under = int(found["under"] or 1)
    if under == 0:
        return None
    negative = found.group().lstrip()[:1] in ("-", "−") and found.group()[1:2] != " "
    value = Fraction(digits) / under
    return -value if negative else value


def answer_number(text: str) -> Fraction | None:
    """The last number in the last box, else the first after the last mark, else the last of the text."""
    for found, at in ((boxed(text), -1), (marked(text), 0), (text, -1)):
        if found is not None and (known := numbers(found)):
            return known[at]
    return None
