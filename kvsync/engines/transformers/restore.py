"""Verified bytes into a new cache, laid out as a fresh run's: fresh memory, the same rooms, exact lengths.

The cache is built aside and handed out only when every layer has been checked.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from kvsync.engines.transformers.dtypes import as_bytes
from kvsync.engines.transformers.filling import fill_cache, tensors_of
from kvsync.engines.transformers.layers import check_state, new_cache
from kvsync.engines.transformers.probe import ModelShape
from kvsync.engines.transformers.slots import AttentionSlot, Slot
from kvsync.engines.transformers.soundness import check_cache
from kvsync.pack import ArtifactReader, Target
from kvsync_protocol.errors import MismatchError


def restore_cache(
    config: Any, shape: ModelShape, reader: ArtifactReader, position: int, device: torch.device
) -> DynamicCache:
    """A new cache with the first `position` tokens of the reader's artifact.

    Raises:
        MismatchError: `mismatch.layout`, `mismatch.position`.
        IntegrityError, NotFoundError, StoreError: from the reader.
        EngineError: `engine.restore`.
    """
    if reader.layout.groups != shape.groups:
        raise MismatchError("mismatch.layout", "the artifact's layers are not laid out like this model's")
    # Uninitialised: the reader fills every byte that is kept.
    host = {
        (number, part): torch.empty(dims, dtype=dtype, device="cpu", pin_memory=device.type != "cpu")
        for number, slot in enumerate(shape.slots)
        for part, dims, dtype in tensors_of(slot, position)
    }
    reader.restore(position, {place: _target(shape.slots[place[0]], host[place], position) for place in host})
    cache = new_cache(config)
    fill_cache(cache, shape.slots, {place: _to_device(host[place], device) for place in host}, position)
    if device.type != "cpu":
        torch.cuda.synchronize(device)  # the pinned buffers are freed when this returns
    check_state(cache)
    check_cache(cache, shape.slots, position)
    return cache


def _target(slot: Slot, tensor: torch.Tensor, position: int) -> Target:
    if isinstance(slot, AttentionSlot):
        return Target(as_bytes(tensor), slot.first_needed(position), position, tensor.shape[-2])
    return Target.of_state(as_bytes(tensor), position)


def _to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    return tensor if device.type == "cpu" else tensor.to(device, non_blocking=True)
