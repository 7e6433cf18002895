"""Which cache layers are understood completely, how they form groups, and what a finished one looks like.

A layer class is known by identity, never by ancestry: a subclass may hold state that its parent does not.
Everything else is refused by name before anything is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from kvsync.engines.transformers.roomy import RoomyLayer
from kvsync.errors import EngineError
from kvsync_protocol.layout import DType, Group, LayerKind

KINDS: Final[dict[type, LayerKind]] = {
    RoomyLayer: LayerKind.FULL,
    DynamicSlidingWindowLayer: LayerKind.SLIDING,
}
_COMMON_STATE: Final = frozenset({"keys", "values", "is_initialized", "device", "dtype"})
_STATE: Final[dict[LayerKind, frozenset[str]]] = {
    LayerKind.FULL: _COMMON_STATE | {"_room", "_views"},
    LayerKind.SLIDING: _COMMON_STATE
    | {"sliding_window", "cumulative_length", "_sliding_window_tensor", "record_past"},
}
_CACHE_STATE: Final = frozenset({"layers", "layer_class_to_replicate", "offloading", "only_non_sliding"})


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps per token; measured, not read from a config."""

    kind: LayerKind
    window: int | None
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: DType


def new_cache(config: Any) -> DynamicCache:
    """An empty cache for a model, every layer of a kind understood here.

    Raises:
        EngineError: `engine.unsupported_layer` with the class's name.
    """
    try:
        cache = DynamicCache(config=config)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            "engine.unsupported_layer", f"transformers has no cache for this model: {error}", layer_class=str(error)
        ) from error
    if not cache.layers:
        raise EngineError("engine.unsupported_layer", "the model has no layers with a cache", layer_class="none")
    cache.layers = [RoomyLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    for index, layer in enumerate(cache.layers):
        layer_kind(layer, index)
    return cache


def layer_kind(layer: object, index: int) -> LayerKind:
    """Raises EngineError `engine.unsupported_layer` unless the layer's class is exactly a known one."""
    kind = KINDS.get(type(layer))
    if kind is None:
        name = type(layer).__name__
        raise EngineError(
            "engine.unsupported_layer",
            f"layer {index} keeps its state in {name}, which is not understood here",
            hint="only full and sliding-window attention can be grafted exactly",
            layer_class=name,
            layer=index,
        )
    return kind


def check_state(cache: DynamicCache) -> None:
    """Refuse a cache that holds anything besides what is known of its layers.

    Raises:
        EngineError: `engine.unsupported_layer`.
    """
    extra = sorted(set(vars(cache)) - _CACHE_STATE)
    if extra:
        raise EngineError(
            "engine.unsupported_layer", f"the cache also holds {', '.join(extra)}", layer_class=type(cache).__name__
        )
    for index, layer in enumerate(cache.layers):
        extra = sorted(set(vars(layer)) - _STATE[layer_kind(layer, index)])
        if extra or getattr(layer, "record_past", False):
            raise EngineError(
                "engine.unsupported_layer",
                f"layer {index} ({type(layer).__name__}) also holds {', '.join(extra) or 'past states'}",
                layer_class=type(layer).__name__,
                layer=index,
            )


def window_of(layer: object) -> int | None:
    """Positions a token sees, itself included; None without a limit."""
    window = getattr(layer, "sliding_window", None)
    return None if window is None else int(window)


def groups_of(shapes: Sequence[LayerShape]) -> tuple[Group, ...]:
    """Layers of one shape together, in order of their first layer; named by kind, numbered when one is taken."""
    members: dict[LayerShape, list[int]] = {}
    for index, shape in enumerate(shapes):
        members.setdefault(shape, []).append(index)
    groups: list[Group] = []
    for shape, layers in members.items():
        same = sum(group.kind is shape.kind for group in groups)
        groups.append(
            Group(
                name=shape.kind.value + (f"_{same + 1}" if same else ""),
                kind=shape.kind,
                layers=tuple(layers),
                kv_heads=shape.kv_heads,
                key_dim=shape.key_dim,
                value_dim=shape.value_dim,
                dtype=shape.dtype,
                window=shape.window,
            )
        )
    return tuple(groups)


def check_cache(cache: DynamicCache, groups: Iterable[Group], position: int, dtype: torch.dtype) -> None:
    """Every layer holds exactly `position` tokens as a fresh run's would: class, window, length, shapes.

    Raises:
        EngineError: `engine.restore`, naming the layer and what is wrong with it.
    """
    seen = 0
    for group in groups:
        for index in group.layers:
            wrong = (
                _wrong_with(cache.layers[index], group, position, dtype)
                if index < len(cache.layers)
                else "is missing"
            )
            if wrong:
                raise EngineError("engine.restore", f"layer {index} {wrong}", layer=index)
            seen += 1
    if seen != len(cache.layers):
        raise EngineError("engine.restore", f"the cache has {len(cache.layers)} layers where {seen} are known")


def _wrong_with(layer: Any, group: Group, position: int, dtype: torch.dtype) -> str:
    """What keeps a layer from being a fresh run's at `position`; empty when nothing does."""
    if KINDS.get(type(layer)) is not group.kind:
        return f"is a {type(layer).__name__}"
    if window_of(layer) != group.window:
        return f"has window {window_of(layer)} where {group.window} is signed"
    if layer.get_seq_length() != position:
        return f"counts {layer.get_seq_length()} tokens where it must hold {position}"
    if position == 0:
        return ""
    if not layer.is_initialized:
        return "is not initialised"
    kept = position - group.first_needed(position)
    for part, tensor, dim in (("key", layer.keys, group.key_dim), ("value", layer.values, group.value_dim)):
        if tuple(tensor.shape) != (1, group.kv_heads, kept, dim) or tensor.dtype != dtype:
            return f"has a {part} of {tuple(tensor.shape)} {tensor.dtype}"
    return ""
