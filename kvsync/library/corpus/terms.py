"""The words of a question that tell passages apart.

Words that hold English questions together tell nothing and are left out, unless there are no others. Words are
letters and digits; whoever searches puts them in quotes, so that nothing in a question is an operator.
"""

from __future__ import annotations

import unicodedata
from typing import Final

from kvsync.library.index import MAX_WORDS, words

FUNCTION_WORDS: Final = frozenset(
    words(
        "a about am an and any are as at be been but by can could did do does for from had has have how i if "
        "in into is it its me my no not of on or our shall she should so tell than that the their them then "
        "there these they this to us was we were what when where which who whom whose why will with would you "
        "your he her his "
    )
)


def terms(question: str) -> list[str]:
    """Its different words in their order, in lower case, at most `MAX_WORDS`."""
    every = words(unicodedata.normalize("NFC", question))
    return ([word for word in every if word not in FUNCTION_WORDS] or every)[:MAX_WORDS]
