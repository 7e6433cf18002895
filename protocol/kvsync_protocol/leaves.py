"""The leaf table: digest and size of every chunk, 40 bytes each (SPEC 4.2).

It is not signed itself: its SHA-256 is a subject of the signed manifest, its tree has the signed
root, and its sizes must be those the layout computes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from kvsync_protocol import merkle
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.layout import Layout
from kvsync_protocol.limits import LEAF_ENTRY_BYTES, MAX_CHUNK_BYTES, MAX_LEAF_TABLE_BYTES


@dataclass(frozen=True, slots=True)
class Leaf:
    """A chunk's name: the SHA-256 of its uncompressed bytes, and their number."""

    digest: Digest
    size: int

    def names(self, computed: bytes) -> bool:
        """Whether `computed`, the SHA-256 of a chunk's bytes as they arrived or were read, is the signed one."""
        return computed == self.digest.raw


@dataclass(frozen=True)
class LeafTable:
    """All leaves in artifact order. `LeafTable.parse(t.encode()) == t`."""

    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, leaves: Sequence[Leaf]) -> LeafTable:
        return cls(tuple(leaves))

    @classmethod
    def parse(cls, data: bytes) -> LeafTable:
        """Raises MalformedError: `leaves.length` or `leaves.size`."""
        if not data or len(data) % LEAF_ENTRY_BYTES or len(data) > MAX_LEAF_TABLE_BYTES:
            raise MalformedError("leaves.length", "a leaf table is a whole number of 40-byte entries, within limits")
        leaves = []
        for raw, size in struct.iter_unpack(">32sQ", data):
            if not 1 <= size <= MAX_CHUNK_BYTES:
                raise MalformedError("leaves.size", "a chunk has 1 byte to 4 MiB", size=size)
            leaves.append(Leaf(Digest(raw), size))
        return cls(tuple(leaves))

    def encode(self) -> bytes:
        return b"".join(struct.pack(">32sQ", leaf.digest.raw, leaf.size) for leaf in self.leaves)

    @cached_property
    def hashes(self) -> tuple[Digest, ...]:
        """Leaf hashes for proofs."""
        return tuple(merkle.chunk_leaf(leaf.digest, leaf.size) for leaf in self.leaves)

    @cached_property
    def root(self) -> Digest:
        return merkle.root(self.hashes)

    @property
    def total_bytes(self) -> int:
        return sum(leaf.size for leaf in self.leaves)

    def check_sizes(self, layout: Layout) -> None:
        """Raises IntegrityError `leaves.layout` unless every size is the one the layout computes."""
        if layout.leaf_count != len(self.leaves) or any(
            span.size != leaf.size for span, leaf in zip(layout.chunks(), self.leaves, strict=True)
        ):
            raise IntegrityError("leaves.layout", "chunk sizes do not follow from the signed geometry")
