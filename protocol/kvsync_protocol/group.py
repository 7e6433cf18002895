"""A group of attention layers: one kind and shape, so that one file per block holds them (SPEC 3.2).

Knows shapes and sizes; where groups stand in an artifact is the layout's business. Layers that keep a state of
fixed size instead of keys and values form the groups of `state`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from kvsync_protocol.errors import MalformedError, VersionError
from kvsync_protocol.limits import MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_TOKENS
from kvsync_protocol.strictjson import Fields

HEADER_UNIT: Final = 128
"""Bytes of header per tensor, and for its frame. The longest entry within the limits has 112."""

LOGITS_GROUP: Final = "logits"


class DType(enum.Enum):
    """Element types, by their safetensors names."""

    F32 = "F32"
    F16 = "F16"
    BF16 = "BF16"
    F8_E4M3 = "F8_E4M3"
    F8_E5M2 = "F8_E5M2"

    @property
    def size(self) -> int:
        """Bytes per element."""
        return {"F32": 4, "F16": 2, "BF16": 2}.get(self.value, 1)

    @classmethod
    def parse(cls, fields: Fields) -> DType:
        """The member `dtype` of a manifest's object. Raises VersionError `version.dtype`."""
        name = fields.string("dtype", limit=16)
        if name not in {known.value for known in cls}:
            raise VersionError("version.dtype", f"dtype {name!r} is not understood here", dtype=name)
        return cls(name)


COMPUTED: Final = (DType.F32, DType.F16, DType.BF16)
"""What models compute in; states of one byte a number are what some caches round to."""


class LayerKind(enum.Enum):
    """How a group's layers look at the past. Anything else is refused by name."""

    FULL = "full"
    SLIDING = "sliding"
    CHUNKED = "chunked"
    RECURRENT = "recurrent"

    @classmethod
    def parse(cls, fields: Fields) -> LayerKind:
        """The member `kind` of a manifest's group. Raises VersionError `version.layer_kind`."""
        name = fields.string("kind", limit=64)
        if name not in {known.value for known in cls}:
            raise VersionError("version.layer_kind", f"layers of kind {name!r} are not understood here", kind=name)
        return cls(name)


WINDOWED: Final = frozenset({LayerKind.SLIDING, LayerKind.CHUNKED})
"""Kinds whose layers keep only the last `window - 1` tokens between calls."""


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one attention kind and shape.

    Each layer holds per block a key `[kv_heads, tokens, key_dim]` and a value
    `[kv_heads, tokens, value_dim]`. `window` is the most positions that a token sees, itself
    included, and is set exactly for sliding and chunked groups. `parse_group(g.as_json()) == g`.

    Raises:
        MalformedError: `layout.name`, `layout.layers`, `layout.shape` or `layout.window`.
    """

    name: str
    kind: LayerKind
    layers: tuple[int, ...]
    kv_heads: int
    key_dim: int
    value_dim: int
    dtype: DType
    window: int | None = None

    def __post_init__(self) -> None:
        check_members(self.name, self.layers)
        if self.kind is LayerKind.RECURRENT:
            raise MalformedError("layout.shape", f"group {self.name!r}: recurrent layers have no keys and values")
        for number, high in (
            (self.kv_heads, MAX_HEADS),
            (self.key_dim, MAX_HEAD_DIM),
            (self.value_dim, MAX_HEAD_DIM),
        ):
            if not 1 <= number <= high:
                raise MalformedError("layout.shape", f"group {self.name!r}: a dimension is out of range")
        if (self.window is not None) != (self.kind in WINDOWED):
            raise MalformedError("layout.window", f"group {self.name!r}: only sliding and chunked ones have a window")
        if self.window is not None and not 2 <= self.window <= MAX_TOKENS:
            raise MalformedError("layout.window", f"group {self.name!r}: the window is out of range")

    def file_size(self, tokens: int) -> int:
        """Bytes of the file that holds `tokens` tokens."""
        numbers = self.kv_heads * tokens * (self.key_dim + self.value_dim)
        return header_size(2 * len(self.layers)) + len(self.layers) * numbers * self.dtype.size

    def first_needed(self, position: int) -> int:
        """The first token a graft at `position` restores: 0, or the window's start.

        A sliding or chunked layer keeps the last `window - 1` tokens between calls.
        """
        return 0 if self.window is None else max(0, position - (self.window - 1))

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "kind": self.kind.value,
            "layers": list(self.layers),
            "kv_heads": self.kv_heads,
            "key_dim": self.key_dim,
            "value_dim": self.value_dim,
            "dtype": self.dtype.value,
            "window": self.window,
        }

    @classmethod
    def read(cls, kind: LayerKind, fields: Fields) -> Group:
        """The members besides `kind`. Raises as `parse_group`."""
        group = cls(
            name=fields.string("name", limit=64),
            kind=kind,
            layers=fields.integers("layers", 0, MAX_LAYERS - 1, limit=MAX_LAYERS),
            kv_heads=fields.integer("kv_heads", 1, MAX_HEADS),
            key_dim=fields.integer("key_dim", 1, MAX_HEAD_DIM),
            value_dim=fields.integer("value_dim", 1, MAX_HEAD_DIM),
            dtype=DType.parse(fields),
            window=fields.optional("window", lambda name: fields.integer(name, 2, MAX_TOKENS)),
        )
        fields.done()
        return group


def check_members(name: str, layers: tuple[int, ...]) -> None:
    """What groups of every kind have in common. Raises MalformedError `layout.name`, `layout.layers`."""
    plain = name.isascii() and name.isidentifier()
    if not plain or name == LOGITS_GROUP or len(name) > 64:
        raise MalformedError("layout.name", "a group's name is a short ASCII identifier other than 'logits'")
    ordered = all(a < b for a, b in pairwise(layers))
    if not layers or not ordered or not 0 <= layers[0] <= layers[-1] < MAX_LAYERS:
        raise MalformedError("layout.layers", f"group {name!r}: layers are empty, unordered or too many")


def header_size(tensors: int) -> int:
    """Bytes of the header of a file with this many tensors."""
    return HEADER_UNIT * (1 + tensors)
