"""A full-attention layer with room behind its tokens, so that a call writes its new states and copies none.

    room    [batch, kv_heads, room, dim]    keys 0 … n │ free
                                            ───────────┘
    keys    [batch, kv_heads, n, dim]       a view of the beginning

transformers' own layer concatenates all it holds at every call. How much room a layer has is a function of
its tokens alone: a fresh and a grafted cache of one length lie in memory in the same way.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from transformers.cache_utils import DynamicLayer

_LEAST_ROOM: Final = 256
_STEPS: Final = 4
"""Rooms between one power of two and the next: at most a quarter is free."""


def room_for(tokens: int) -> int:
    """Tokens that a layer holding `tokens` has room for; the same for every way of getting there."""
    step = max(_LEAST_ROOM, (1 << (tokens.bit_length() - 1)) // _STEPS) if tokens else _LEAST_ROOM
    return -(-tokens // step) * step


class RoomyLayer(DynamicLayer):  # type: ignore[misc]  # transformers is untyped
    """Behaves like `DynamicLayer`, for every caller.

    A room is only ever appended to. Whatever makes `keys` anything but its last view (a crop, a reordered batch, a
    copy of the layer) leaves it to those who still look at it, and the next call takes a new one.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._room: tuple[torch.Tensor, torch.Tensor] | None = None
        self._views: tuple[torch.Tensor, torch.Tensor] | None = None

    def __copy__(self) -> RoomyLayer:
        """A second layer must not write behind the first one's back."""
        twin = type(self)()
        twin.__dict__.update(self.__dict__)
        twin._views = None
        return twin

    def fill(self, room: tuple[torch.Tensor, torch.Tensor], tokens: int) -> None:
        """Take a room whose first `tokens` tokens are written; `room_for(tokens)` tokens long."""
        keys, values = room
        self.lazy_initialization(keys, values)
        self._show(room, tokens)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        held = self.get_seq_length()
        if _needs_copies(key_states, value_states) or (held and not self._continued_by(key_states, value_states)):
            found: tuple[torch.Tensor, torch.Tensor] = super().update(key_states, value_states, *args, **kwargs)
            return found
        stop = held + key_states.shape[-2]
        room = self._usable(stop) or self._larger(key_states, value_states, held, stop)
        for part, new in zip(room, (key_states, value_states), strict=True):
            part[:, :, held:stop] = new
        self._show(room, stop)
        return self.keys, self.values

    def reset(self) -> None:
        super().reset()
        self._room = self._views = None

    def _continued_by(self, *new: torch.Tensor) -> bool:
        """Whether what comes is of the same batch, heads and type. What is not gets concatenation's own answer."""
        held = (self.keys, self.values)
        return all(a.shape[:2] == b.shape[:2] and a.dtype == b.dtype for a, b in zip(held, new, strict=True))

    def _usable(self, stop: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """The room, if `keys` and `values` are still its last views and `new` fits behind them."""
        if self._room is None or self._views is None:
            return None
        room = self._room[0]
        mine = self.keys is self._views[0] and self.values is self._views[1]
        writable = not room.is_inference() or torch.is_inference_mode_enabled()
        return self._room if mine and writable and stop <= room.shape[-2] else None

    def _larger(
        self, key: torch.Tensor, value: torch.Tensor, held: int, stop: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A new room with all that is held."""
        keys, values = (new.new_empty((*new.shape[:2], room_for(stop), new.shape[-1])) for new in (key, value))
        if held:
            keys[:, :, :held] = self.keys
            values[:, :, :held] = self.values
        return keys, values

    def _show(self, room: tuple[torch.Tensor, torch.Tensor], tokens: int) -> None:
        self._room = room
        self.keys, self.values = self._views = room[0][:, :, :tokens], room[1][:, :, :tokens]


def _needs_copies(*new: torch.Tensor) -> bool:
    """Autograd keeps what a call has seen; writing beside it in place would be an error there."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in new)
