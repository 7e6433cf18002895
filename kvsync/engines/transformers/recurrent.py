"""The states of a recurrent layer: which ones it has, a copy of them, and the way back.

transformers keeps up to two kinds a layer, `conv0, conv1, …` (the last inputs of a short convolution) and
`state0, state1, …` (what linear attention or a state-space model has summed up), each `[1, …]` of fixed shape.
A call overwrites them in place, so nothing but a copy says what they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from kvsync.engines.transformers.dtypes import TO_TORCH, from_torch
from kvsync.engines.transformers.slots import StateSlot
from kvsync.errors import EngineError
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.layout import StatePart


def parts_of(layer: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and live tensor of every state that the layer has by now; none for one without states."""
    for index in range(getattr(layer, "number_of_states", 0)):
        for kind, found in (("conv", layer.conv_states), ("state", layer.recurrent_states)):
            if found[index] is not None:
                yield f"{kind}{index}", found[index]


def slot_of(layer: Any, index: int) -> StateSlot:
    """How the states of a layer look after a call, at `index` in its cache.

    Raises:
        EngineError: `engine.capture` for a layer without states, `engine.dtype`, `engine.unsupported_layer` for
            states that no artifact can hold.
    """
    parts = []
    strides = []
    for name, tensor in parts_of(layer):
        if tensor.shape[0] != 1:
            raise EngineError("engine.capture", f"layer {index} keeps a {name} of {tuple(tensor.shape)}", layer=index)
        try:
            parts.append(StatePart(name, tuple(tensor.shape[1:]), from_torch(tensor.dtype)))
        except MalformedError as error:
            raise EngineError(
                "engine.unsupported_layer",
                f"layer {index} keeps a {name} of {tuple(tensor.shape)}: {error.message}",
                layer_class=type(layer).__name__,
            ) from error
        strides.append(tensor.stride())
    if not parts:
        raise EngineError("engine.capture", f"layer {index} has kept no state", layer=index)
    return StateSlot(index, tuple(parts), tuple(strides), tuple(layer.has_previous_state.values()))


def snapshot(layer: Any, slot: StateSlot) -> dict[str, torch.Tensor]:
    """A copy of every state, without the batch, contiguous.

    Raises:
        EngineError: `engine.capture` when the states are not those of the slot.
    """
    wrong = deviation(layer, slot)
    if wrong:
        raise EngineError("engine.capture", f"layer {slot.layer} {wrong}", layer=slot.layer)
    return {name: tensor[0].clone(memory_format=torch.contiguous_format) for name, tensor in parts_of(layer)}


def fill(layer: Any, slot: StateSlot, states: Mapping[str, torch.Tensor]) -> None:
    """Everything that a fresh layer remembers between calls, from states `[…]` on the layer's device.

    Memory is laid out as the layer's own was.
    """
    for part, stride in zip(slot.parts, slot.strides, strict=True):
        kind = "conv" if part.name.startswith("conv") else "state"
        index = int(part.name.removeprefix(kind))
        given = states[part.name][None]
        tensor = torch.empty_strided(given.shape, stride, dtype=given.dtype, device=given.device).copy_(given)
        if kind == "conv":
            layer.lazy_initialization(conv_states=tensor, state_idx=index, conv_kernel_size=tensor.shape[-1])
            layer.conv_states[index].copy_(tensor)
        else:
            layer.lazy_initialization(recurrent_states=tensor, state_idx=index)
            layer.recurrent_states[index].copy_(tensor)
    layer.has_previous_state.update(enumerate(slot.previous))


def deviation(layer: Any, slot: StateSlot) -> str:
    """What keeps a layer's states from being a fresh run's after a call; empty when nothing does."""
    found = dict(parts_of(layer))
    names = [part.name for part in slot.parts]
    if list(found) != names:
        return f"keeps {', '.join(found) or 'nothing'} where it must keep {', '.join(names)}"
    for part, stride in zip(slot.parts, slot.strides, strict=True):
        tensor = found[part.name]
        if (tuple(tensor.shape), tensor.dtype, tensor.stride()) != ((1, *part.shape), TO_TORCH[part.dtype], stride):
            return f"has a {part.name} of {tuple(tensor.shape)} {tensor.dtype}, strides {tensor.stride()}"
    if tuple(layer.has_previous_state.values()) != slot.previous:
        return "does not say the same about earlier tokens"
    return ""
