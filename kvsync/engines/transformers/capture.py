"""New KV states, taken as the model hands them to its cache, and assembled into blocks.

    call      0 ─── 256 ─── 512 ─ 600 ─── 768           block 2 arrives in two calls
    blocks    |  0   |   1   |      2      |  …

Keys and values are recorded at the door of the cache (after RoPE, before any window drops them), so it does not
matter how much a layer keeps. The states of recurrent layers are copied from the cache at each block's end. What
copies a block from a device is begun here and awaited where the block is delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicCache

from kvsync.engines.delivery import Delivery, Tensors
from kvsync.engines.transformers import recurrent
from kvsync.engines.transformers.dtypes import TO_TORCH, as_bytes
from kvsync.engines.transformers.slots import Slot, attention_slots, state_slots
from kvsync.errors import EngineError

Record = Callable[[int, torch.Tensor, torch.Tensor], None]


class CapturingCache(DynamicCache):  # type: ignore[misc]  # transformers is untyped
    """The layers of another cache, with every new state shown to `record` before its layer sees it."""

    def __init__(self, inner: DynamicCache, record: Record) -> None:
        Cache.__init__(self, layers=inner.layers)  # DynamicCache.__init__ would make layers of its own
        self._record = record

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self._record(layer_idx, key_states, value_states)
        found: tuple[torch.Tensor, torch.Tensor] = super().update(
            key_states, value_states, layer_idx, *args, **kwargs
        )
        return found


class BlockAssembler:
    """Collects the states of consecutive calls and hands on each block when its last token is there.

    Args:
        slots: what the layers of `cache` keep.
        start: tokens in `cache` already; when that is inside a block, the block's beginning is taken from there.
        delivery: receives the blocks.
    """

    def __init__(
        self, slots: Sequence[Slot], block_tokens: int, start: int, cache: DynamicCache, delivery: Delivery
    ) -> None:
        self._attention = {slot.layer: (number, slot) for number, slot in attention_slots(slots)}
        self._states = list(state_slots(slots))
        self._cache = cache
        self._block_tokens = block_tokens
        self._position = start
        self._delivery = delivery
        self._parts: dict[tuple[int, str], list[torch.Tensor]] = {
            (number, part): [] for number, slot in self._attention.values() for part, _ in slot.parts()
        }
        self._recorded: set[int] = set()
        self._held = start % block_tokens
        if self._held:
            self._take_beginning()

    def _take_beginning(self) -> None:
        for index, (number, _) in self._attention.items():
            layer = self._cache.layers[index]
            for part, tensor in (("key", layer.keys), ("value", layer.values)):
                if tensor is None or tensor.shape[-2] < self._held:
                    raise EngineError(
                        "engine.capture",
                        f"layer {index} no longer holds the first {self._held} tokens of the block",
                        hint="start at a multiple of block_tokens",
                        layer=index,
                    )
                self._parts[number, part].append(tensor[0, :, tensor.shape[-2] - self._held :].clone())

    def record(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> None:
        """One layer's new states of the running call, each `[1, kv_heads, tokens, dim]`."""
        if layer in self._recorded or layer not in self._attention:
            raise EngineError(
                "engine.capture", f"layer {layer} was updated twice in one call, or keeps nothing", layer=layer
            )
        self._recorded.add(layer)
        number, _ = self._attention[layer]
        for part, tensor in (("key", key), ("value", value)):
            self._parts[number, part].append(tensor[0])

    def advance(self, stop: int, *, final: bool) -> None:
        """The call that computed tokens up to `stop` has ended; `final` flushes a partial block.

        Raises:
            EngineError: `engine.capture` when a layer did not hand over exactly the tokens of the call.
            What the sink of an earlier block has raised.
        """
        new = stop - self._position
        for layer, (number, slot) in self._attention.items():
            for part, dim in slot.parts():
                last = self._parts[number, part][-1] if layer in self._recorded else None
                shape = None if last is None else tuple(last.shape)
                if last is None or shape != (slot.kv_heads, new, dim) or last.dtype != TO_TORCH[slot.dtype]:
                    raise EngineError("engine.capture", f"layer {layer} gave a {part} of {shape} for {new} tokens")
        self._recorded.clear()
        self._position = stop
        if stop % self._block_tokens == 0 or final:
            block = (stop - 1) // self._block_tokens
            tensors = {place: _joined(parts) for place, parts in self._parts.items()}
            for number, states in self._states:
                found = recurrent.snapshot(self._cache.layers[states.layer], states)
                tensors.update({(number, part): tensor for part, tensor in found.items()})
            host = _to_host(tensors)
            del tensors
            for parts in self._parts.values():
                parts.clear()
            self._delivery.put(block, stop, host)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """`[kv_heads, tokens, dim]`, contiguous, in memory that nothing else writes."""
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts, dim=1).contiguous()


def _to_host(tensors: dict[tuple[int, str], torch.Tensor]) -> Callable[[], Tensors]:
    """Begin copies in host memory; what is returned waits for them, since an unfinished one would give old bytes."""
    device = next(iter(tensors.values())).device
    if device.type == "cpu":
        return lambda: _bytes(tensors)
    host = {}
    with torch.cuda.device(device):
        for slot, tensor in tensors.items():
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
            host[slot] = pinned.copy_(tensor, non_blocking=True)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record()

    def final() -> Tensors:
        copied.synchronize()
        return _bytes(host)

    return final


def _bytes(tensors: dict[tuple[int, str], torch.Tensor]) -> Tensors:
    return {place: as_bytes(tensor) for place, tensor in tensors.items()}
