"""One context's state for several rows of a batch, and into a cache that the caller has made.

A batch of n continuations of one prefix is exact against a fresh run that does the same: compute the prefix once,
repeat its state n times, go on with n rows. Against a prefix computed n rows at a time it is not, since that has
other matrix shapes from the first call on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.errors import EngineError

Change = Callable[[torch.Tensor], torch.Tensor]

_REASONS = {
    "StaticCache": "it attends over all its room, so its states have other bits than those that grow token by token",
    "QuantizedCache": "it keeps rounded states, from which nothing exact follows",
    "EncoderDecoderCache": "it holds the state of two models",
}


def repeated(cache: DynamicCache, times: int) -> DynamicCache:
    """A new cache with the state of `cache` in every one of `times` rows; `cache` stays as it is.

    Raises:
        EngineError: `engine.batch` unless `times` is 1 or more.
    """
    if times < 1:
        raise EngineError("engine.batch", f"a batch has at least one row, not {times}")
    return _changed(cache, lambda held: held.repeat_interleave(times, dim=0))


def selected(cache: DynamicCache, rows: Sequence[int]) -> DynamicCache:
    """A new cache with some rows of `cache`, in this order; `cache` stays as it is.

    Raises:
        EngineError: `engine.batch` for no rows.
    """
    if not rows:
        raise EngineError("engine.batch", "a batch has at least one row")
    return _changed(cache, lambda held: held[list(rows)])


def _changed(cache: DynamicCache, change: Change) -> DynamicCache:
    twin = copy.copy(cache)
    twin.layers = [_changed_layer(layer, change) for layer in cache.layers]
    return twin


def _changed_layer(layer: Any, change: Change) -> Any:
    twin = copy.copy(layer)
    for name in ("keys", "values"):
        if isinstance(getattr(layer, name, None), torch.Tensor):
            setattr(twin, name, change(getattr(layer, name)))
    for name, held in vars(layer).items():
        if isinstance(held, dict):  # states by index, and what is known of them
            rows = {index: change(v) if isinstance(v, torch.Tensor) else v for index, v in held.items()}
            setattr(twin, name, rows)
    return twin


def check_takes(cache: Any) -> None:
    """Refuse a caller's cache that cannot take an engine's state as it is.

    Raises:
        EngineError: `engine.unsupported_cache` with the class's name, or for one that is not empty.
    """
    name = type(cache).__name__
    if type(cache) is not DynamicCache:
        reason = _REASONS.get(name, "only a DynamicCache is filled exactly as a fresh run fills it")
        raise EngineError(
            "engine.unsupported_cache",
            f"no state is put into a {name}: {reason}",
            hint="pass a DynamicCache, or none and use the one that a graft returns",
            cache_class=name,
        )
    if cache.offloading:
        raise EngineError("engine.unsupported_cache", "the cache moves its layers to another device")
    if any(getattr(layer, "is_initialized", False) and layer.keys is not None for layer in cache.layers):
        raise EngineError("engine.unsupported_cache", "the cache holds another context's state")
