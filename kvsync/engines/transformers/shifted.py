"""Positions moved by re-rotated keys: inexact, and here only to measure by how much. `kvsync prove` alone uses it.

RoPE turns a key by an angle per position, so a key at p becomes one at p + shift by a further turn. In exact
arithmetic the attention would not notice. The turn is computed in float32 and rounded to the cache's dtype, which
is the most careful way that is in use anywhere. A model whose own rotation is not the one computed here is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from kvsync.engines.engine import Context, Logits
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.engines.transformers.layers import new_cache
from kvsync.engines.transformers.logits import TensorLogits
from kvsync.errors import EngineError
from kvsync_protocol.layout import DType, Group, LayerKind
from kvsync_protocol.schedule import Schedule

_ROPE_TYPES: Final = frozenset({"default", "linear", "llama3"})
"""Those whose angle is the position times a constant."""
_KINDS: Final = (LayerKind.FULL, LayerKind.SLIDING)
_TOLERANCE: Final = {DType.F32: 0.01, DType.BF16: 0.05, DType.F16: 0.02}
"""Of the largest key: far above rounding, far below what another rotation gives."""
_PROBE_TOKEN: Final = 1


def extend_shifted(
    engine: TransformersEngine, context: Context, tokens: Sequence[int], schedule: Schedule, shift: int
) -> Logits:
    """`engine.extend` as if everything in `context` and behind it stood `shift` positions later.

    The context's keys are overwritten; it is of no other use afterwards.

    Raises:
        EngineError: `engine.shift` with the reason why this model or this length cannot be shifted.
    """
    last = context.position + len(tokens) + shift
    if last > engine.max_tokens:
        raise _refused(f"{last} positions are more than the model's {engine.max_tokens}")
    frequencies = _frequencies(engine)
    with engine._running(context, tokens, schedule) as (cache, start):
        forward = engine._forward
        _check(engine, forward, frequencies, shift)
        if start:
            _rotate(cache, frequencies, shift)
        parts = [
            forward(cache, tokens[begin - start : end - start], keep=0, first=begin + shift).cpu()
            for begin, end in schedule.segments(start, start + len(tokens))
        ]
        return TensorLogits(torch.cat(parts).contiguous())


def _frequencies(engine: TransformersEngine) -> list[torch.Tensor]:
    """Radians per position of every pair of numbers in a key, for each layer: `[rotated dims / 2]`, float32."""
    if any(not isinstance(group, Group) or group.kind not in _KINDS for group in engine.groups):
        raise _refused("it has layers whose state is no list of keys")
    found = [module for name, module in engine.model.named_modules() if name.endswith("rotary_emb")]
    if len(found) != 1:
        raise _refused("its positions are not encoded by one rotary embedding")
    (rotary,) = found
    layers = sum(len(group.layers) for group in engine.groups)
    if layers != len(engine.new_context().cache.layers):
        raise _refused("some of its layers keep no keys of their own")
    kinds = getattr(engine.model.config, "layer_types", None) or [""] * layers
    types = rotary.rope_type if isinstance(rotary.rope_type, dict) else dict.fromkeys(kinds, rotary.rope_type)
    return [_frequency(rotary, kinds[layer], str(types.get(kinds[layer]))) for layer in range(layers)]


def _frequency(rotary: Any, kind: str, rope_type: str) -> torch.Tensor:
    prefix = f"{kind}_" if hasattr(rotary, f"{kind}_inv_freq") else ""
    frequency = getattr(rotary, f"{prefix}inv_freq", None)
    if frequency is None or rope_type not in _ROPE_TYPES or getattr(rotary, f"{prefix}attention_scaling", 1.0) != 1.0:
        raise _refused(f"its positions are encoded by {rope_type!r}, which a further turn does not move")
    found: torch.Tensor = frequency.detach().float()
    return found


def _check(engine: TransformersEngine, forward: Any, frequencies: Sequence[torch.Tensor], shift: int) -> None:
    """One token attends to itself alone, so its keys at two positions differ by the rotation and by nothing else."""
    here, there = new_cache(engine.model.config), new_cache(engine.model.config)
    forward(here, [_PROBE_TOKEN], keep=1, first=0)
    forward(there, [_PROBE_TOKEN], keep=1, first=shift)
    _rotate(here, frequencies, shift)
    for index, (ours, theirs) in enumerate(zip(here.layers, there.layers, strict=True)):
        largest = float(theirs.keys.abs().max())
        apart = float((ours.keys.float() - theirs.keys.float()).abs().max())
        if not apart <= _TOLERANCE[engine.dtype] * largest:
            raise _refused(f"a turned key of layer {index} is not the key that the model computes at that position")


def _rotate(cache: Any, frequencies: Sequence[torch.Tensor], shift: int) -> None:
    """Turn every key of the cache, `[1, kv_heads, tokens, dim]`, where it lies."""
    for layer, frequency in zip(cache.layers, frequencies, strict=True):
        half = len(frequency)
        angle = frequency.double() * shift  # [rotated dims / 2]
        cos, sin = angle.cos().float(), angle.sin().float()
        first, second = (part.float() for part in layer.keys[..., : 2 * half].split(half, dim=-1))
        layer.keys[..., : 2 * half] = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(
            layer.keys.dtype
        )


def _refused(reason: str) -> EngineError:
    return EngineError("engine.shift", reason)
