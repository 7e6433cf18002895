"""Element types: the protocol's names and torch's."""

from __future__ import annotations

from typing import Final

import torch

from kvsync.errors import EngineError
from kvsync_protocol.group import COMPUTED, DType

TO_TORCH: Final = {
    DType.F32: torch.float32,
    DType.F16: torch.float16,
    DType.BF16: torch.bfloat16,
    DType.F8_E4M3: torch.float8_e4m3fn,
    DType.F8_E5M2: torch.float8_e5m2,
}
_FROM_TORCH: Final = {TO_TORCH[here]: here for here in COMPUTED}


def from_torch(dtype: torch.dtype) -> DType:
    """Raises EngineError `engine.dtype` for a type that no model computes in here."""
    if dtype not in _FROM_TORCH:
        raise EngineError("engine.dtype", f"states of {dtype} are not captured", hint="use F32, BF16 or F16")
    return _FROM_TORCH[dtype]


def as_bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous host tensor, flat; writing to it writes the tensor."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise EngineError("engine.capture", "only contiguous host tensors have plain bytes")
    return tensor.reshape(-1).view(torch.uint8).numpy().data
