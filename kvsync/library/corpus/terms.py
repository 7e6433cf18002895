"""The words of a question that tell passages apart, and pairs of them that stand together.

Words that hold English questions together tell nothing and are left out, unless there are no others. Words are
letters and digits; whoever searches puts them in quotes, so that nothing in a question is an operator.
"""

from __future__ import annotations

import unicodedata
from itertools import pairwise
from typing import Final

from kvsync.library.index import MAX_WORDS, sequence, words

FUNCTION_WORDS: Final = frozenset(
    words(
        "a about am an and any are as at be been but by can could did do does for from had has have how i if "
        "in into is it its me my no not of on or our shall she should so tell than that the their them then "
        "there these they this to us was we were what when where which who whom whose why will with would you "
        "your he her his "
    )
)
_BETWEEN: Final = 2


def terms(question: str) -> list[str]:
    """Different words in lower case, in their order, and behind them the phrases from each to the next, as asked.

    A phrase holds two telling words and at most `_BETWEEN` others between them: `code of brimouth`. Few passages have
    it by chance, so that the one which says what was asked comes before those which only speak of the same things.
    """
    every = sequence(unicodedata.normalize("NFC", question))
    telling = [number for number, word in enumerate(every) if word not in FUNCTION_WORDS] or list(range(len(every)))
    phrases = [
        " ".join(every[first : second + 1])
        for first, second in pairwise(telling)
        if second - first <= _BETWEEN + 1 and every[first] != every[second]
    ]
    return list(dict.fromkeys([*[every[number] for number in telling][:MAX_WORDS], *phrases[:MAX_WORDS]]))
