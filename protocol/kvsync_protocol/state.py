"""A group of recurrent layers: named states of fixed size that replace keys and values (SPEC 3.2).

A state says what was left of all tokens before it, and cannot be cut shorter. So it is stored as snapshots, at
certain block ends only, and a graft can begin nowhere else. Where these ends are is the layout's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod
from typing import Final

from kvsync_protocol.errors import MalformedError
from kvsync_protocol.group import DType, LayerKind, check_members, header_size
from kvsync_protocol.limits import (
    MAX_LAYERS,
    MAX_SNAPSHOT_BLOCKS,
    MAX_STATE_DIMS,
    MAX_STATE_NUMBERS,
    MAX_STATE_PARTS,
)
from kvsync_protocol.strictjson import Fields

_PART_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,7}")


@dataclass(frozen=True, slots=True)
class StatePart:
    """One tensor of a layer's state. Raises MalformedError `layout.name`, `layout.shape`."""

    name: str
    shape: tuple[int, ...]
    dtype: DType

    def __post_init__(self) -> None:
        if not _PART_NAME.fullmatch(self.name) or self.name in ("key", "value"):
            raise MalformedError("layout.name", "a part's name has up to 8 lower-case letters and digits")
        low = min(self.shape, default=0)
        if low < 1 or len(self.shape) > MAX_STATE_DIMS or prod(self.shape) > MAX_STATE_NUMBERS:
            raise MalformedError("layout.shape", f"part {self.name!r}: a shape out of range")

    @property
    def size(self) -> int:
        """Bytes."""
        return prod(self.shape) * self.dtype.size

    def as_json(self) -> dict[str, object]:
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.value}

    @classmethod
    def parse(cls, value: object) -> StatePart:
        """Read a part of a manifest's group. Raises `manifest.*`, `layout.*`, `version.dtype`."""
        fields = Fields(value, "manifest")
        part = cls(
            name=fields.string("name", limit=8),
            shape=fields.integers("shape", 1, MAX_STATE_NUMBERS, limit=MAX_STATE_DIMS),
            dtype=DType.parse(fields),
        )
        fields.done()
        return part


@dataclass(frozen=True, slots=True)
class StateGroup:
    """Layers that share one set of states, with a snapshot after every `every`-th block.

    `parse_group(g.as_json()) == g`.

    Raises:
        MalformedError: `layout.name`, `layout.layers`, `layout.parts` or `layout.shape`.
    """

    name: str
    layers: tuple[int, ...]
    parts: tuple[StatePart, ...]
    every: int

    def __post_init__(self) -> None:
        check_members(self.name, self.layers)
        names = {part.name for part in self.parts}
        if not 1 <= len(self.parts) <= MAX_STATE_PARTS or len(names) != len(self.parts):
            raise MalformedError("layout.parts", f"group {self.name!r}: parts are missing, too many or share a name")
        if not 1 <= self.every <= MAX_SNAPSHOT_BLOCKS:
            raise MalformedError("layout.shape", f"group {self.name!r}: snapshots too rare or too often")

    @property
    def kind(self) -> LayerKind:
        return LayerKind.RECURRENT

    @property
    def file_size(self) -> int:
        """Bytes of the file with one snapshot of all layers."""
        numbers = sum(part.size for part in self.parts)
        return header_size(len(self.parts) * len(self.layers)) + len(self.layers) * numbers

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "layers": list(self.layers),
            "parts": [part.as_json() for part in self.parts],
            "every": self.every,
        }

    @classmethod
    def read(cls, fields: Fields) -> StateGroup:
        """The members besides `kind`. Raises as `parse_group`."""
        group = cls(
            name=fields.string("name", limit=64),
            layers=fields.integers("layers", 0, MAX_LAYERS - 1, limit=MAX_LAYERS),
            parts=tuple(StatePart.parse(entry) for entry in fields.array("parts", limit=MAX_STATE_PARTS)),
            every=fields.integer("every", 1, MAX_SNAPSHOT_BLOCKS),
        )
        fields.done()
        return group
