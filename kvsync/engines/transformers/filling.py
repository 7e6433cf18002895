"""Known state into the layers of an empty cache, and the memory that it has to come in.

full               0 ───────────────────── position ··· room     all tokens
sliding, chunked            window - 1 ─── position              what such a layer keeps between calls
recurrent                                  position              the states left of all tokens
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.engines.transformers import recurrent
from kvsync.engines.transformers.dtypes import TO_TORCH
from kvsync.engines.transformers.roomy import room_for
from kvsync.engines.transformers.slots import AttentionSlot, Slot

Place = tuple[int, str]
"""Slot and part."""


def tensors_of(slot: Slot, position: int) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    """Part, shape and type of what one slot takes: `[1, kv_heads, room, dim]`, or `[…]` for a state."""
    if isinstance(slot, AttentionSlot):
        kept = position - slot.first_needed(position)
        room = room_for(kept) if slot.roomy else kept
        for part, dim in slot.parts():
            yield part, (1, slot.kv_heads, room, dim), TO_TORCH[slot.dtype]
    else:
        for state in slot.parts:
            yield state.name, state.shape, TO_TORCH[state.dtype]


def fill_cache(
    cache: DynamicCache, slots: Sequence[Slot], tensors: Mapping[Place, torch.Tensor], position: int
) -> None:
    """Everything that the layers of an empty cache remember after `position` tokens.

    Keys and values are taken over, states are copied.
    """
    for number, slot in enumerate(slots):
        layer = cache.layers[slot.layer]
        if isinstance(slot, AttentionSlot):
            _fill_keys(layer, slot, tensors[number, "key"], tensors[number, "value"], position)
        else:
            recurrent.fill(layer, slot, {part.name: tensors[number, part.name] for part in slot.parts})


def _fill_keys(layer: Any, slot: AttentionSlot, keys: torch.Tensor, values: torch.Tensor, position: int) -> None:
    if slot.roomy:
        layer.fill((keys, values), position)
        return
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values = keys, values
    if slot.window is not None:
        layer.cumulative_length = position
