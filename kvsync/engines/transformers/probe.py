"""What a model really keeps and returns, seen in one call of two tokens, instead of what a config promises."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import torch

from kvsync.engines.transformers.capture import CapturingCache
from kvsync.engines.transformers.dtypes import TO_TORCH, as_bytes, from_torch
from kvsync.engines.transformers.forward import Forward
from kvsync.engines.transformers.layers import (
    LayerShape,
    check_cache,
    check_state,
    groups_of,
    layer_kind,
    new_cache,
    window_of,
)
from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest
from kvsync_protocol.layout import DType, Group

PROBE_TOKENS = (0, 1)


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Geometry of a model's state and results."""

    groups: tuple[Group, ...]
    vocab: int
    logits_dtype: DType
    digest: Digest
    """Of all that the call computed: a remembered canary belongs to it."""


def probe(forward: Forward, config: Any) -> ModelShape:
    """Run two tokens and look at every layer. Leaves no state.

    Raises:
        EngineError: `engine.unsupported_layer`, `engine.capture`, `engine.dtype`.
    """
    cache = new_cache(config)
    states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def record(layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        if layer in states:
            raise EngineError("engine.capture", f"layer {layer} was updated twice in one call", layer=layer)
        states[layer] = (key, value)

    logits = forward(CapturingCache(cache, record), PROBE_TOKENS, keep=0)
    check_state(cache)
    if sorted(states) != list(range(len(cache.layers))):
        raise EngineError("engine.capture", "not every layer of the cache was updated")
    shapes = []
    for index, layer in enumerate(cache.layers):
        key, value = states[index]
        shapes.append(_shape(index, layer, key, value))
        kept = layer.keys[0, :, -1], layer.values[0, :, -1]
        if not all(torch.equal(a, b[0, :, -1]) for a, b in zip(kept, (key, value), strict=True)):
            raise EngineError("engine.capture", f"layer {index} does not keep what it was given", layer=index)
    groups = groups_of(shapes)
    for group in groups:
        check_cache(cache, groups, len(PROBE_TOKENS), TO_TORCH[group.dtype])
    return ModelShape(groups, logits.shape[-1], from_torch(logits.dtype), _digest(logits, states))


def _digest(logits: torch.Tensor, states: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> Digest:
    state = hashlib.sha256()
    for tensor in (logits, *(part for index in sorted(states) for part in states[index])):
        state.update(as_bytes(tensor.detach().cpu().contiguous()))
    return Digest(state.digest())


def _shape(index: int, layer: object, key: torch.Tensor, value: torch.Tensor) -> LayerShape:
    tokens = len(PROBE_TOKENS)
    right = key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3] == (1, key.shape[1], tokens)
    if not right or key.dtype != value.dtype:
        raise EngineError("engine.capture", f"layer {index} keeps {tuple(key.shape)} and {tuple(value.shape)}")
    return LayerShape(
        kind=layer_kind(layer, index),
        window=window_of(layer),
        kv_heads=key.shape[1],
        key_dim=key.shape[3],
        value_dim=value.shape[3],
        dtype=from_torch(key.dtype),
    )
