"""`Problem`: a problem's text, the one form in which it is compared, and the address of that form.

White space and the Unicode form do not count; everything else does, case and punctuation too, since both can
carry meaning. Knows nothing of similarity: two problems have one address or two.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from kvsync.errors import UsageError
from kvsync_protocol.digest import Digest, hash_record
from kvsync_protocol.limits import KiB

MAX_PROBLEM_BYTES = 64 * KiB
_TAG = "kvsync/problem/1"

# Unicode's White_Space, and the four separators U+001C–U+001F, spelled out so that it never depends on a library.
_SPACE = re.compile("[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem as it was asked (`text`), as it is compared (`normalised`), and its `address`."""

    text: str
    normalised: str
    address: Digest

    @classmethod
    def of(cls, text: str) -> Problem:
        """The problem that `text` asks; `Problem.of(p.normalised).address == p.address`.

        Raises:
            UsageError: `problem.empty`, `problem.encoding`, `problem.size`.
        """
        normalised = normalise(text)
        return cls(text, normalised, hash_record(_TAG, [normalised.encode()]))


def normalise(text: str) -> str:
    """NFC, runs of white space as one space, none at the ends.

    Raises:
        UsageError: `problem.empty`, `problem.encoding` (half a surrogate pair), `problem.size`.
    """
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise UsageError("problem.encoding", "the problem holds half a surrogate pair: it is no text") from error
    if size > MAX_PROBLEM_BYTES:
        raise UsageError("problem.size", f"the problem is larger than {MAX_PROBLEM_BYTES} bytes", size=size)
    found = _SPACE.sub(" ", unicodedata.normalize("NFC", text)).strip(" ")
    if not found:
        raise UsageError("problem.empty", "the problem is empty")
    return found
