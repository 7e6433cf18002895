"""A cache and how far it reaches. Notices when somebody else has moved it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.engines.transformers.batch import check_takes, repeated
from kvsync.errors import EngineError


class TransformersContext:
    """Made by an engine; usable only with it."""

    __slots__ = ("_cache", "_owner", "_position", "_torch_device")

    def __init__(self, owner: object, cache: DynamicCache, position: int, device: torch.device) -> None:
        self._owner = owner
        self._cache = cache
        self._position = position
        self._torch_device = device

    @property
    def position(self) -> int:
        """Tokens in the cache. Raises EngineError `engine.context` when an earlier call failed half-way."""
        if self._position < 0:
            raise EngineError("engine.context", "an earlier call failed in this context; start a new one")
        return self._position

    @property
    def cache(self) -> DynamicCache:
        return self._cache

    @property
    def device(self) -> str:
        return str(self._torch_device)

    def repeated(self, rows: int) -> DynamicCache:
        """See `kvsync.engines.engine.Context`."""
        self.check_unmoved()
        return repeated(self._cache, rows)

    def move_into(self, cache: Any) -> None:
        """See `kvsync.engines.engine.Context`."""
        check_takes(cache)
        self.check_unmoved()
        cache.layers = self._cache.layers
        self._cache = cache

    def check(self, owner: object) -> None:
        """Raises EngineError `engine.context` for another engine's context or a cache used elsewhere since."""
        if self._owner is not owner:
            raise EngineError("engine.context", "this context belongs to another engine")
        self.check_unmoved()

    def check_unmoved(self) -> None:
        """Positions follow from the cache: one that somebody else has moved gives the next token a wrong one.

        Raises:
            EngineError: `engine.context`.
        """
        counting = (layer for layer in self._cache.layers if hasattr(layer, "get_seq_length"))
        lengths = {layer.get_seq_length() for layer in counting}
        if lengths != {self.position}:
            raise EngineError(
                "engine.context",
                f"the cache holds {sorted(lengths)} tokens where this context has computed {self.position}",
                hint="give generate() a copy of the cache, or start a new context",
            )

    @contextmanager
    def moving(self, tokens: int) -> Iterator[int]:
        """Around the calls that append `tokens`; gives the position they start at.

        A failure inside leaves the context unusable, not subtly wrong.
        """
        start, self._position = self.position, -1
        yield start
        self._position = start + tokens
