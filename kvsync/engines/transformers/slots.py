"""The numbered layers of an artifact as this engine has them: slots of a cache, and the groups they form.

    cache layer    0 attention   1 nothing   2 attention and states   3 states
    slot           0             –           1, 2                     3

A cache layer with keys and values is one slot, one with states is one slot, one with both is two, one that keeps
nothing is none. For models with plain attention alone, slots and layers are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvsync_protocol.layout import AnyGroup, DType, Group, LayerKind, StateGroup, StatePart


@dataclass(frozen=True, slots=True)
class AttentionSlot:
    """What one layer keeps per token; measured, not read from a config."""

    layer: int
    """Its place in the cache."""
    kind: LayerKind
    window: int | None
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: DType
    roomy: bool = False
    """Whether its layer is one with room behind its tokens."""

    def first_needed(self, position: int) -> int:
        """The first token it holds behind `position` tokens."""
        return 0 if self.window is None else max(0, position - (self.window - 1))

    def parts(self) -> tuple[tuple[str, int], ...]:
        """Names of its tensors with their numbers per head and token."""
        return ("key", self.key_dim), ("value", self.value_dim)


@dataclass(frozen=True, slots=True)
class StateSlot:
    """The states of one layer, and how they lie in memory: strides of each with its batch of one."""

    layer: int
    parts: tuple[StatePart, ...]
    strides: tuple[tuple[int, ...], ...]
    previous: tuple[bool, ...]
    """Whether the layer says of each pair of states that there were earlier tokens."""


Slot = AttentionSlot | StateSlot


def groups_of(slots: Sequence[Slot], every: int) -> tuple[AnyGroup, ...]:
    """Slots of one shape together, in order of their first one; named by kind, numbered when one is taken.

    `every` is the number of blocks from one snapshot of states to the next.
    """
    members: dict[Slot | tuple[StatePart, ...], list[int]] = {}
    for number, slot in enumerate(slots):
        shape = slot.parts if isinstance(slot, StateSlot) else replace(slot, layer=0, roomy=False)
        members.setdefault(shape, []).append(number)
    groups: list[AnyGroup] = []
    for numbers in members.values():
        slot = slots[numbers[0]]
        kind = LayerKind.RECURRENT if isinstance(slot, StateSlot) else slot.kind
        same = sum(group.kind is kind for group in groups)
        name = kind.value + (f"_{same + 1}" if same else "")
        groups.append(_group(name, slot, tuple(numbers), every))
    return tuple(groups)


def _group(name: str, slot: Slot, layers: tuple[int, ...], every: int) -> AnyGroup:
    if isinstance(slot, StateSlot):
        return StateGroup(name, layers, slot.parts, every)
    return Group(
        name=name,
        kind=slot.kind,
        layers=layers,
        kv_heads=slot.kv_heads,
        key_dim=slot.key_dim,
        value_dim=slot.value_dim,
        dtype=slot.dtype,
        window=slot.window,
    )


def attention_slots(slots: Sequence[Slot]) -> Iterator[tuple[int, AttentionSlot]]:
    """Those with keys and values, by number."""
    return ((number, slot) for number, slot in enumerate(slots) if isinstance(slot, AttentionSlot))


def state_slots(slots: Sequence[Slot]) -> Iterator[tuple[int, StateSlot]]:
    """Those with states, by number."""
    return ((number, slot) for number, slot in enumerate(slots) if isinstance(slot, StateSlot))
