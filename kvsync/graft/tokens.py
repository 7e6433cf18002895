"""Token ids as callers have them, made plain. Knows no tensor library: whatever can say `tolist` may come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from kvsync.errors import UsageError


class Array(Protocol):
    """A tensor or array, whoever made it."""

    def tolist(self) -> Any: ...


Tokens = Sequence[int] | Sequence[Sequence[int]] | Array


def token_ids(tokens: Tokens) -> Sequence[int]:
    """One sequence of whole numbers: a list as it is, the content of a tensor or array, `[n]` or `[1, n]`.

    Ranges are checked where the numbers are used.

    Raises:
        UsageError: `tokens.kind` for several sequences at once, a text, and what holds no whole numbers.
    """
    found: Any = tokens.tolist() if hasattr(tokens, "tolist") else tokens
    if isinstance(found, list | tuple) and len(found) == 1 and isinstance(found[0], list | tuple):
        found = found[0]
    if not isinstance(found, Sequence) or not all(type(token) is int for token in found):
        raise UsageError(
            "tokens.kind",
            "the tokens are not one sequence of whole numbers",
            hint='pass tokenizer(text)["input_ids"]; a batch is grafted one sequence at a time',
        )
    ids: Sequence[int] = found
    return ids
