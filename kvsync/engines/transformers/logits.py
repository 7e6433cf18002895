"""Logits in host memory, with their hash and their comparisons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch

from kvsync.engines.engine import Logits
from kvsync.engines.transformers.dtypes import TO_TORCH, as_bytes, from_torch
from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.layout import DType

_LIKELY: Final = 1e-4
"""Part of the greatest probability from which on tokens are looked at first when one is drawn."""


@dataclass(frozen=True, slots=True, eq=False)
class TensorLogits:
    """`tensor` is `[positions, vocab]`, contiguous, on the CPU."""

    tensor: torch.Tensor

    @classmethod
    def of_bytes(cls, data: bytes, dtype: DType) -> TensorLogits:
        """One position from its stored bytes."""
        # A bytearray, since torch wants memory it may write to.
        return cls(torch.frombuffer(bytearray(data), dtype=TO_TORCH[dtype]).reshape(1, -1))

    @property
    def positions(self) -> int:
        return self.tensor.shape[0]

    @property
    def vocab(self) -> int:
        return self.tensor.shape[1]

    @property
    def dtype(self) -> DType:
        return from_torch(self.tensor.dtype)

    def buffer(self) -> memoryview:
        return as_bytes(self.tensor)

    def sha256(self) -> Digest:
        return sha256(self.buffer())

    def last(self) -> TensorLogits:
        return TensorLogits(self.tensor[-1:])

    def at(self, position: int) -> TensorLogits:
        return TensorLogits(self.tensor[position : position + 1])

    def tail(self, count: int) -> TensorLogits:
        return TensorLogits(self.tensor[-count:])

    def argmax(self) -> list[int]:
        return [int(index) for index in self.tensor.argmax(dim=-1)]

    def draw(self, temperature: float, top_p: float, number: float) -> int:
        chances = torch.softmax(self.tensor[-1].double() / temperature, dim=-1)
        for part in (_LIKELY, 0.0):
            # What is at least so likely stands first in the order of all, ties by id: sorting it alone is cheaper.
            ids = (~(chances < part * chances.max())).nonzero().squeeze(-1)
            likely, order = chances[ids].sort(descending=True, stable=True)
            reached = likely.cumsum(dim=-1)
            if float(reached[-1]) >= top_p:
                break
        # Rounding may leave the whole sum just below top_p, or the drawn place at its very end.
        kept = min(int(torch.searchsorted(reached, top_p)), len(ids) - 1)
        place = int(torch.searchsorted(reached[: kept + 1], number * float(reached[kept]), right=True))
        return int(ids[order[min(place, kept)]])

    def max_abs(self, other: Logits) -> float:
        # torch's max, since Python's would lose a NaN.
        return float(torch.stack([(a.double() - b.double()).abs().max() for a, b in self._rows(other)]).max())

    def kl(self, other: Logits) -> float:
        total = 0.0
        for ours, theirs in self._rows(other):
            log_p = torch.log_softmax(ours.double(), dim=-1)
            log_q = torch.log_softmax(theirs.double(), dim=-1)
            total += float((log_p.exp() * (log_p - log_q)).sum())
        return 0.0 if total < 0 else total / self.positions

    def _rows(self, other: Logits) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Both sides' rows, one pair at a time: a vocabulary is large."""
        if not isinstance(other, TensorLogits) or other.tensor.shape != self.tensor.shape:
            raise EngineError("engine.logits", "logits of different shapes cannot be compared")
        return zip(self.tensor, other.tensor, strict=True)
