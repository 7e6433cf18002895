"""Cut a document into passages that fit a limit, at the coarsest places that allow it.

    sections ─ paragraphs ─ lines ─ sentences ─ words ─ characters

A passage ends at the last section that fits behind its beginning; when not even the first one does, at the last
paragraph that fits, and so on. So no section is divided that would fit alone, and no paragraph; and the passages of a
document, one behind the other, are the document. Knows no tokenizer: what fits is the caller's to say.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from kvsync.library.corpus.outline import Outline

Fits = Callable[[int, int], bool]
"""Whether the characters `start` to `stop` make a passage that is not too long."""

_ENDS: Final = (
    re.compile(r"\n(?:[ \t]*\n)+"),  # paragraphs: what follows an empty line
    re.compile(r"\n+"),
    re.compile(r"""[.!?…]["'”’)\]]*\s+|[。！？]["'”’）」]*\s*"""),
    re.compile(r"\s+"),
)


def cut(text: str, outline: Outline, fits: Fits, most: int) -> Iterator[tuple[int, int]]:
    """(start, stop) of each passage; together they cover the text. None is longer than `most` characters, above 0.

    A single character is a passage whether it fits or not. `fits` should say yes to the shorter of two more often
    than to the longer; every passage of several characters is one that it said yes to.
    """
    start, length = 0, most // 4 + 1
    while start < len(text):
        stop = _stop(text, outline, fits, start, min(len(text), start + most), start + length)
        yield start, stop
        start, length = stop, stop - start


def _stop(text: str, outline: Outline, fits: Fits, start: int, last: int, guess: int) -> int:
    for ends in _levels(text, outline, start, last):
        found = _farthest(ends, lambda stop: fits(start, stop), guess)
        if found is not None:
            return found
    return start + 1


def _levels(text: str, outline: Outline, start: int, last: int) -> Iterator[Sequence[int]]:
    """Places behind `start` and not behind `last` where a passage may end, the coarsest kind first."""
    whole = [len(text)] if last == len(text) else []
    begin = bisect_right(outline.starts, start)
    yield [*outline.starts[begin : bisect_right(outline.starts, last)], *whole]
    for pattern in _ENDS:
        # Those behind the next section's beginning may stand here too: a section that fits was taken above.
        yield sorted({*(found.end() for found in pattern.finditer(text, start, last)), *whole})
    yield range(start + 1, last + 1)


def _farthest(ends: Sequence[int], fits: Callable[[int], bool], guess: int) -> int | None:
    """The last of `ends` that fits, looked for from `guess` outward; None when the first does not."""
    low, high = -1, len(ends)  # what is known to fit, and not to
    place, step = max(0, bisect_right(ends, guess) - 1), 1
    while high - low > 1:
        place = min(max(place, low + 1), high - 1)
        if fits(ends[place]):
            low, place = place, place + step if high == len(ends) else (place + high) // 2
        else:
            high, place = place, place - step if low < 0 else (place + low) // 2
        step *= 2
    return ends[low] if low >= 0 else None
