"""Where a document's sections begin, and under which titles they stand.

Titles are looked for by the kind of text that the name promises: `#` and underlined ones in Markdown, underlined ones
in other prose, top-level classes and functions in Python. Other texts are one section. A wrong guess costs a good
place to cut and a line of the citation, nothing else.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

MAX_TITLE_CHARS: Final = 100
SEPARATOR: Final = " > "
_MAX_BYTES: Final = 1000

_FENCE: Final = re.compile(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n.*?(?:^ {0,3}\1[`~]*[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_MARKED: Final = re.compile(r"^ {0,3}(?P<depth>#{1,6})[ \t]+(?P<title>[^\n]+)$", re.MULTILINE)
_UNDERLINED: Final = re.compile(
    r"^(?P<title>[^\s=~^\"'`#*+\-|][^\n]*)\n(?P<line>(?P<mark>[=\-~^\"'`#*+])(?P=mark){2,})[ \t]*$",
    re.MULTILINE,
)
_DEFINED: Final = re.compile(r"^(?:@[^\n]*\n)*(?:async def|def|class) (?P<title>\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outline:
    """`starts` ascend from 0; `titles[i]` are those that section i stands under, the outermost first."""

    starts: tuple[int, ...]
    titles: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, source: str, text: str) -> Outline:
        starts = [0]
        titles: list[tuple[str, ...]] = [()]
        above: list[tuple[int, str]] = []
        for place, depth, title in _titles(PurePosixPath(source).suffix.lower(), text):
            above = [*(each for each in above if each[0] < depth), (depth, title)]
            path = tuple(each[1] for each in above)
            if place == starts[-1]:
                titles[-1] = path
            else:
                starts.append(place)
                titles.append(path)
        return cls(tuple(starts), tuple(titles))

    def over(self, start: int, stop: int) -> str:
        """The titles that all of `start` to `stop` stands under."""
        first = bisect_right(self.starts, start) - 1
        last = bisect_right(self.starts, max(start, stop - 1)) - 1
        found = _common(self.titles[first : last + 1])
        while len(SEPARATOR.join(found).encode()) > _MAX_BYTES:
            found = found[1:]
        return SEPARATOR.join(found)


def _common(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    low, high = min(paths), max(paths)
    return low[: next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))]


def _titles(suffix: str, text: str) -> Iterator[tuple[int, int, str]]:
    """(place, depth, title) in order."""
    if suffix in (".py", ".pyi"):
        found = [(each.start(), 1, each["title"]) for each in _DEFINED.finditer(text)]
    elif suffix in (".md", ".markdown", ".rst", ".txt", ".text", ""):
        found = list(_underlined(text))
        if suffix in (".md", ".markdown"):
            found += [(each.start(), len(each["depth"]), each["title"]) for each in _MARKED.finditer(text)]
            fenced = [each.span() for each in _FENCE.finditer(text)]
            found = [each for each in found if not _inside(each[0], fenced)]
    else:
        found = []
    for place, depth, title in sorted(found):
        plain = " ".join("".join(c if c.isprintable() else " " for c in title.rstrip("# \t")).split())
        if plain:
            yield place, depth, plain[:MAX_TITLE_CHARS]


def _underlined(text: str) -> Iterator[tuple[int, int, str]]:
    """Depths by the order in which kinds of lines come first."""
    marks: list[str] = []
    for each in _UNDERLINED.finditer(text):
        if len(each["line"]) < len(each["title"].rstrip()):
            continue
        if each["mark"] not in marks:
            marks.append(each["mark"])
        yield each.start(), marks.index(each["mark"]) + 1, each["title"]


def _inside(place: int, spans: Sequence[tuple[int, int]]) -> bool:
    number = bisect_right(spans, place, key=lambda span: span[0]) - 1
    return number >= 0 and spans[number][0] <= place < spans[number][1]
