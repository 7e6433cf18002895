"""Which classes of cache layers are understood completely, and a cache made of nothing else.

A layer class is known by identity, never by ancestry: a subclass may hold state that its parent does not.
Everything else is refused by name before anything is computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from transformers.cache_utils import (
    DummyLayer,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from kvsync.engines.transformers.roomy import RoomyLayer
from kvsync.errors import EngineError
from kvsync_protocol.layout import LayerKind

_KEYS: Final = frozenset({"keys", "values", "is_initialized", "device", "dtype"})
_WINDOW: Final = frozenset({"sliding_window", "cumulative_length", "_sliding_window_tensor", "record_past"})
_STATES: Final = frozenset(
    {
        "number_of_states",
        "conv_states",
        "recurrent_states",
        "is_conv_states_initialized",
        "is_recurrent_states_initialized",
        "has_previous_state",
        "conv_kernel_size",
        "device",
        "dtype",
        "record_past",
    }
)
_CACHE_STATE: Final = frozenset({"layers", "layer_class_to_replicate", "offloading", "only_non_sliding"})


@dataclass(frozen=True, slots=True)
class Known:
    """What layers of one class keep: keys and values of this kind, or none; states of fixed size, or none."""

    attention: LayerKind | None
    recurrent: bool
    holds: frozenset[str]
    """Every attribute that one may have."""

    @staticmethod
    def of(layer: object) -> Known | None:
        """What is known of the layer's very class; of one derived from it, nothing."""
        return KNOWN.get(type(layer))


KNOWN: Final[dict[type, Known]] = {
    RoomyLayer: Known(LayerKind.FULL, False, _KEYS | {"_room", "_views"}),
    DynamicSlidingWindowLayer: Known(LayerKind.SLIDING, False, _KEYS | _WINDOW),
    LinearAttentionLayer: Known(None, True, _STATES),
    LinearAttentionAndFullAttentionLayer: Known(LayerKind.FULL, True, _KEYS | _STATES),
    LinearAttentionAndSlidingWindowAttentionLayer: Known(LayerKind.SLIDING, True, _KEYS | _WINDOW | _STATES),
    # Stands for a layer without attention, or one that reads another's keys in the same call.
    DummyLayer: Known(None, False, frozenset({"keys", "values", "is_initialized"})),
}


def new_cache(config: Any) -> DynamicCache:
    """An empty cache for a model, every layer of a class known here.

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
        known(layer, index)
    return cache


def known(layer: object, index: int) -> Known:
    """Raises EngineError `engine.unsupported_layer` unless the layer's class is exactly one of those above."""
    found = Known.of(layer)
    if found is None:
        name = type(layer).__name__
        raise EngineError(
            "engine.unsupported_layer",
            f"layer {index} keeps its state in {name}, which is not understood here",
            hint="full, sliding-window, chunked and recurrent layers can be grafted exactly",
            layer_class=name,
            layer=index,
        )
    return found


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
        extra = sorted(set(vars(layer)) - known(layer, index).holds)
        if extra or getattr(layer, "record_past", False):
            raise EngineError(
                "engine.unsupported_layer",
                f"layer {index} ({type(layer).__name__}) also holds {', '.join(extra) or 'past states'}",
                layer_class=type(layer).__name__,
                layer=index,
            )


def chunked_layers(config: Any) -> frozenset[int]:
    """Layers that see no further back than the start of their chunk; their cache layers look like sliding ones."""
    types = getattr(config, "layer_types", None)
    if types is None:
        sliding = getattr(config, "sliding_window", None) is not None
        everywhere = getattr(config, "attention_chunk_size", None) is not None and not sliding
        types = ["chunked_attention"] * config.num_hidden_layers if everywhere else []
    return frozenset(index for index, name in enumerate(types) if name == "chunked_attention")
