"""What a model really keeps and returns, seen in calls of a few tokens, instead of what a config promises.

One goes on from a cache that was filled with nothing but the known state of another one, after the model has
computed something else: a model that remembers anything anywhere else gives other logits there. Others go on without
a recurrent state: a model that gives the same logits then has ignored it, and would forget at every cut.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.engines.transformers import recurrent
from kvsync.engines.transformers.capture import CapturingCache
from kvsync.engines.transformers.dtypes import as_bytes, from_torch
from kvsync.engines.transformers.filling import Place, fill_cache, tensors_of
from kvsync.engines.transformers.forward import Forward
from kvsync.engines.transformers.layers import check_state, chunked_layers, known, new_cache
from kvsync.engines.transformers.roomy import RoomyLayer
from kvsync.engines.transformers.slots import AttentionSlot, Slot, StateSlot, groups_of
from kvsync.engines.transformers.soundness import check_cache, window_of
from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest
from kvsync_protocol.layout import AnyGroup, DType, LayerKind

PROBE_TOKENS = (0, 1)
_NEXT_TOKENS = (1, 0, 1)
_OTHER_TOKENS = (1, 1, 0, 1)

States = dict[int, tuple[torch.Tensor, torch.Tensor]]
"""New keys and values by layer."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Geometry of a model's state and results."""

    groups: tuple[AnyGroup, ...]
    slots: tuple[Slot, ...]
    vocab: int
    logits_dtype: DType
    digest: Digest
    """Of all that the first call computed: a remembered canary belongs to it."""


def probe(forward: Forward, config: Any, snapshot_blocks: int) -> ModelShape:
    """Run two tokens and look at every layer. Leaves no state.

    Args:
        snapshot_blocks: blocks from one snapshot of recurrent layers to the next.

    Raises:
        EngineError: `engine.unsupported_model`, `engine.unsupported_layer`, `engine.capture`, `engine.dtype`.
    """
    cache = new_cache(config)
    states: States = {}

    def record(layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if layer in states:
            raise EngineError("engine.capture", f"layer {layer} was updated twice in one call", layer=layer)
        states[layer] = (key, value)

    logits = _call(forward, CapturingCache(cache, record), PROBE_TOKENS)
    check_state(cache)
    slots = _slots(cache, states, chunked_layers(config))
    check_cache(cache, slots, len(PROBE_TOKENS))
    digest = _digest(logits, states, cache)
    _check_complete(forward, config, cache, slots)
    return ModelShape(groups_of(slots, snapshot_blocks), slots, logits.shape[-1], from_torch(logits.dtype), digest)


def _call(forward: Forward, cache: DynamicCache, tokens: Sequence[int]) -> torch.Tensor:
    try:
        return forward(cache, tokens, keep=0)
    except (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
        raise EngineError(
            "engine.unsupported_model",
            f"{type(forward.model).__name__} does not compute with a dynamic cache here: {reason[0][:300]}",
        ) from error


def _slots(cache: DynamicCache, states: States, chunked: frozenset[int]) -> tuple[Slot, ...]:
    kinds = [known(layer, index) for index, layer in enumerate(cache.layers)]
    if sorted(states) != [index for index, kind in enumerate(kinds) if kind.attention]:
        raise EngineError("engine.capture", "not every layer of the cache was updated, or one that keeps nothing was")
    if not states:
        raise EngineError(
            "engine.unsupported_model", "no layer counts its tokens, so a cache that was moved could not be told"
        )
    slots: list[Slot] = []
    for index, (layer, kind) in enumerate(zip(cache.layers, kinds, strict=True)):
        if kind.attention:
            key, value = states[index]
            slots.append(
                _attention(index, layer, LayerKind.CHUNKED if index in chunked else kind.attention, key, value)
            )
        if kind.recurrent:
            slots.append(recurrent.slot_of(layer, index))
    return tuple(slots)


def _attention(index: int, layer: Any, kind: LayerKind, key: torch.Tensor, value: torch.Tensor) -> AttentionSlot:
    tokens = len(PROBE_TOKENS)
    right = key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3] == (1, key.shape[1], tokens)
    if not right or key.dtype != value.dtype:
        raise EngineError("engine.capture", f"layer {index} keeps {tuple(key.shape)} and {tuple(value.shape)}")
    kept = layer.keys[0, :, -1], layer.values[0, :, -1]
    if not all(torch.equal(a, b[0, :, -1]) for a, b in zip(kept, (key, value), strict=True)):
        raise EngineError("engine.capture", f"layer {index} does not keep what it was given", layer=index)
    return AttentionSlot(
        layer=index,
        kind=kind,
        window=window_of(layer),
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        dtype=from_torch(key.dtype),
        roomy=type(layer) is RoomyLayer,
    )


def _digest(logits: torch.Tensor, states: States, cache: DynamicCache) -> Digest:
    state = hashlib.sha256()
    left = [tensor for layer in cache.layers for _, tensor in recurrent.parts_of(layer)]
    for tensor in (logits, *(part for index in sorted(states) for part in states[index]), *left):
        state.update(as_bytes(tensor.detach().cpu().contiguous()))
    return Digest(state.digest())


def _check_complete(forward: Forward, config: Any, cache: DynamicCache, slots: Sequence[Slot]) -> None:
    """What follows depends on the known state, on all of it, and on nothing else.

    Raises:
        EngineError: `engine.unsupported_model` when the model remembers more than its cache, or does not use it.
    """
    position = len(PROBE_TOKENS)
    held = _copies(cache, slots, position)
    model = type(forward.model).__name__

    def without(gone: str | None, tokens: Sequence[int]) -> torch.Tensor:
        twin = new_cache(config)
        tensors = {place: torch.zeros_like(held[place]) if place[1] == gone else held[place] for place in held}
        fill_cache(twin, slots, {place: tensor.clone() for place, tensor in tensors.items()}, position)
        return _call(forward, twin, tokens)

    expected = _call(forward, cache, _NEXT_TOKENS)
    _call(forward, new_cache(config), _OTHER_TOKENS)
    if not _same(without(None, _NEXT_TOKENS), expected):
        raise EngineError(
            "engine.unsupported_model",
            f"{model} remembers more than its cache holds",
            hint="state outside the cache cannot be moved to another context",
        )
    states = sorted({part.name for slot in slots if isinstance(slot, StateSlot) for part in slot.parts})
    for tokens in (_NEXT_TOKENS, _NEXT_TOKENS[:1]):
        right = without(None, tokens)
        for part in states:
            if _same(without(part, tokens), right):
                raise EngineError(
                    "engine.unsupported_model",
                    f"{model} ignores its {part} when {len(tokens)} tokens follow, so it forgets at every cut",
                    hint="what it would compute in several calls is not what the model is meant to compute",
                )


def _copies(cache: DynamicCache, slots: Sequence[Slot], position: int) -> dict[Place, torch.Tensor]:
    found: dict[Place, torch.Tensor] = {}
    for number, slot in enumerate(slots):
        layer = cache.layers[slot.layer]
        if not isinstance(slot, AttentionSlot):
            found.update({(number, name): tensor for name, tensor in recurrent.snapshot(layer, slot).items()})
            continue
        for (part, dims, dtype), held in zip(tensors_of(slot, position), (layer.keys, layer.values), strict=True):
            found[number, part] = torch.empty(dims, dtype=dtype, device=held.device)
            found[number, part][:, :, : held.shape[-2]] = held
    return found


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """In every bit; a NaN equals itself."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
