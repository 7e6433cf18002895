"""Verified bytes into a new cache, laid out as a fresh run's: fresh memory, the same rooms, exact lengths.

    full      0 ───────────────────── position ··· room     all tokens
    sliding            window - 1 ─── position              what such a layer keeps between calls

The cache is built aside and handed out only when every layer has been checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.engines.transformers.dtypes import TO_TORCH, as_bytes
from kvsync.engines.transformers.layers import check_cache, check_state, new_cache
from kvsync.engines.transformers.roomy import room_for
from kvsync.pack import ArtifactReader, Target
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.layout import Group, LayerKind


def restore_cache(
    config: Any, groups: Sequence[Group], reader: ArtifactReader, position: int, device: torch.device
) -> DynamicCache:
    """A new cache with the first `position` tokens of the reader's artifact.

    Raises:
        MismatchError: `mismatch.layout`, `mismatch.position`.
        IntegrityError, NotFoundError, StoreError: from the reader.
        EngineError: `engine.restore`.
    """
    if reader.layout.groups != tuple(groups):
        raise MismatchError("mismatch.layout", "the artifact's layers are not laid out like this model's")
    host = _allocate(groups, position, pinned=device.type != "cpu")
    targets = {
        (layer, part): Target(as_bytes(tensor), group.first_needed(position), position, tensor.shape[-2])
        for group in groups
        for layer in group.layers
        for part, tensor in (("key", host[layer, "key"]), ("value", host[layer, "value"]))
    }
    reader.restore(position, targets)
    cache = new_cache(config)
    for group in groups:
        for index in group.layers:
            keys, values = (_to_device(host[index, part], device) for part in ("key", "value"))
            _fill(cache.layers[index], group.kind, keys, values, position)
    if device.type != "cpu":
        torch.cuda.synchronize(device)  # the pinned buffers are freed when this returns
    check_state(cache)
    for group in groups:
        check_cache(cache, groups, position, TO_TORCH[group.dtype])
    return cache


def _allocate(groups: Sequence[Group], position: int, *, pinned: bool) -> dict[tuple[int, str], torch.Tensor]:
    """Host tensors `[1, kv_heads, room, dim]`, uninitialised: the reader fills every byte that is kept."""
    return {
        (layer, part): torch.empty(
            (1, group.kv_heads, _room(group, position), dim),
            dtype=TO_TORCH[group.dtype],
            device="cpu",
            pin_memory=pinned,
        )
        for group in groups
        for layer in group.layers
        for part, dim in (("key", group.key_dim), ("value", group.value_dim))
    }


def _room(group: Group, position: int) -> int:
    kept = position - group.first_needed(position)
    return room_for(kept) if group.kind is LayerKind.FULL else kept


def _to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)


def _fill(layer: Any, kind: LayerKind, keys: torch.Tensor, values: torch.Tensor, position: int) -> None:
    """Everything a layer of this kind remembers between calls."""
    if kind is LayerKind.FULL:
        layer.fill((keys, values), position)
    else:
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values
        layer.cumulative_length = position
