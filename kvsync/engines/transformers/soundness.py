"""Whether a cache is what a fresh run's would be at a position: classes, windows, lengths, shapes, states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers.cache_utils import DynamicCache

from kvsync.engines.transformers.dtypes import TO_TORCH
from kvsync.engines.transformers.layers import Known
from kvsync.engines.transformers.recurrent import deviation, parts_of
from kvsync.engines.transformers.slots import AttentionSlot, Slot
from kvsync.errors import EngineError
from kvsync_protocol.layout import LayerKind


def check_cache(cache: DynamicCache, slots: Sequence[Slot], position: int) -> None:
    """Every layer holds exactly `position` tokens as a fresh run's would.

    Raises:
        EngineError: `engine.restore`, naming the layer and what is wrong with it.
    """
    for slot in slots:
        layers = cache.layers
        wrong = _wrong_with(layers[slot.layer], slot, position) if slot.layer < len(layers) else "is missing"
        if wrong:
            raise EngineError("engine.restore", f"layer {slot.layer} {wrong}", layer=slot.layer)
    keeping = {slot.layer for slot in slots}
    for index, layer in enumerate(cache.layers):
        what = Known.of(layer)
        if what is None or (index not in keeping and (what.attention or what.recurrent)):
            raise EngineError("engine.restore", f"layer {index} is not one of those known", layer=index)


def _wrong_with(layer: Any, slot: Slot, position: int) -> str:
    """What keeps a layer from being a fresh run's at `position`; empty when nothing does."""
    what = Known.of(layer)
    if what is None:
        return f"is a {type(layer).__name__}"
    if isinstance(slot, AttentionSlot):
        return _wrong_keys(layer, what.attention, slot, position)
    if not what.recurrent:
        return f"is a {type(layer).__name__}"
    if position == 0:
        return "has states already" if any(True for _ in parts_of(layer)) else ""
    return deviation(layer, slot)


def _wrong_keys(layer: Any, kind: LayerKind | None, slot: AttentionSlot, position: int) -> str:
    # A chunk is a matter of the mask; what such a layer keeps is a window.
    if kind is not (LayerKind.SLIDING if slot.kind is LayerKind.CHUNKED else slot.kind):
        return f"is a {type(layer).__name__}"
    if window_of(layer) != slot.window:
        return f"has window {window_of(layer)} where {slot.window} is signed"
    if layer.get_seq_length() != position:
        return f"counts {layer.get_seq_length()} tokens where it must hold {position}"
    if position == 0:
        return ""
    if not layer.is_initialized:
        return "is not initialised"
    kept = position - slot.first_needed(position)
    for tensor, (part, dim) in zip((layer.keys, layer.values), slot.parts(), strict=True):
        if tuple(tensor.shape) != (1, slot.kv_heads, kept, dim) or tensor.dtype != TO_TORCH[slot.dtype]:
            return f"has a {part} of {tuple(tensor.shape)} {tensor.dtype}"
    return ""


def window_of(layer: object) -> int | None:
    """The most positions a token sees, itself included; None without a limit."""
    window = getattr(layer, "sliding_window", None)
    return None if window is None else int(window)
