"""Which chunks a bundle holds, in which order: each once, where the first artifact that has it needs it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvsync.store.extent import Extent
from kvsync_protocol.digest import Digest
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import Leaf, LeafTable


@dataclass(frozen=True, slots=True)
class Contents:
    """One artifact's share: its leaves, or those of `extent`."""

    layout: Layout
    table: LeafTable
    extent: Extent | None

    @property
    def indices(self) -> Iterable[int]:
        return range(len(self.table.leaves)) if self.extent is None else (s.index for s in self.extent.spans())

    @property
    def bytes(self) -> int:
        return self.table.total_bytes if self.extent is None else self.extent.bytes


@dataclass(frozen=True, slots=True)
class BundledChunk:
    """Leaf `index` of an artifact with `layout`, by which alone its bytes can be split."""

    layout: Layout
    index: int
    leaf: Leaf


def bundled_chunks(artifacts: Iterable[Contents]) -> Iterator[BundledChunk]:
    """Every chunk that some of `artifacts` need, in the order of the file."""
    seen: set[Digest] = set()
    for each in artifacts:
        for index in each.indices:
            leaf = each.table.leaves[index]
            if leaf.digest not in seen:
                seen.add(leaf.digest)
                yield BundledChunk(each.layout, index, leaf)
