"""One forward call, made in one way only: fresh, grafted, canary and probe runs share this code."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.errors import EngineError


class Forward:
    """Calls a causal language model on the tokens behind a cache.

    Raises:
        EngineError: `engine.unsupported_model` when its forward takes no cache.
    """

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self.device = device
        names = inspect.signature(model.forward).parameters
        # transformers has renamed the argument during version 5.
        found = [name for name in ("cache", "past_key_values") if name in names]
        if not found:
            raise EngineError("engine.unsupported_model", f"{type(model).__name__} takes no cache")
        self._cache_name = found[0]
        self._can_keep = "logits_to_keep" in names

    def __call__(
        self, cache: DynamicCache, tokens: Sequence[int], *, keep: int, first: int | None = None
    ) -> torch.Tensor:
        """Logits of the last `keep` positions, all for 0: `[positions, vocab]` on the model's device.

        `first` is the position of the first token where that is not the next one in the cache (`shifted`).
        """
        extra: dict[str, object] = {}
        if first is not None:
            extra["position_ids"] = torch.arange(first, first + len(tokens), device=self.device)[None]
        if self._can_keep:
            extra["logits_to_keep"] = keep
        logits = self._call(cache, [list(tokens)], extra)[0]
        return logits if self._can_keep or keep == 0 else logits[-keep:]

    def rows(self, cache: DynamicCache, tokens: Sequence[int]) -> torch.Tensor:
        """Logits behind one more token in each row of `cache`: `[rows, vocab]`."""
        return self._call(cache, [[token] for token in tokens], {})[:, -1]

    def _call(self, cache: DynamicCache, tokens: list[list[int]], extra: dict[str, object]) -> torch.Tensor:
        """`[rows, positions, vocab]`."""
        extra = {**extra, self._cache_name: cache}
        ids = torch.tensor(tokens, dtype=torch.long, device=self.device)
        out = self.model(input_ids=ids, use_cache=True, return_dict=True, **extra)
        if out.get(self._cache_name) is not cache:
            raise EngineError(
                "engine.unsupported_model", f"{type(self.model).__name__} put its state into a cache of its own"
            )
        logits: torch.Tensor = out.logits
        return logits
