"""`Served`: what this store can give others of one artifact: stored whole, in part, or still arriving.

Of an artifact that is still arriving every chunk that is here was verified, as chunks/ holds no other. While it is
served, neither gc nor `remove` takes it away, before its draft is published or after: the lock is on its folder,
which a publish renames. Knows no peer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvsync.errors import NotFoundError, StoreError
from kvsync.store import leases, locks
from kvsync.store.artifacts import check_id, is_damage, unjudged, unknown
from kvsync.store.parts import Parts
from kvsync.store.stored import ENVELOPE, LEAVES, StoredArtifact
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import MAX_ENVELOPE_BYTES, MAX_LEAF_TABLE_BYTES


@dataclass(frozen=True)
class Served:
    """Valid while its context is open. `offered` are the leaves of an artifact kept in part; None: all."""

    table: LeafTable
    layout: Layout
    offered: frozenset[int] | None
    parts: Parts

    def leaf(self, index: int) -> Leaf | None:
        """The leaf `index`, unless there is none or it is not kept here."""
        if not 0 <= index < len(self.table.leaves) or (self.offered is not None and index not in self.offered):
            return None
        return self.table.leaves[index]

    def here(self) -> list[int]:
        """Leaves that are offered and whose chunk is here now, ascending; looked up at each call."""
        offered = range(len(self.table.leaves)) if self.offered is None else sorted(self.offered)
        leaves = {index: self.table.leaves[index] for index in offered}
        sizes = self.parts.chunks.sizes(leaf.digest for leaf in leaves.values())
        return [index for index, leaf in leaves.items() if sizes.get(leaf.digest) == leaf.size]


@contextmanager
def serve(parts: Parts, artifact: ArtifactId) -> Iterator[Served]:
    """Raises as `Store.serve`."""
    try:
        folder = parts.files.lock(artifact, shared=True)
    except NotFoundError:
        with _arriving(parts, artifact) as served:
            yield served
        return
    try:
        parts.files.touch(artifact)
        stored = parts.files.load(artifact, pinned=False)
        yield Served(_table(parts, artifact, stored.leaves), stored.manifest.layout, _offered(stored), parts)
    finally:
        if folder is not None:
            folder.close()


def _table(parts: Parts, artifact: ArtifactId, read: Callable[[], LeafTable]) -> LeafTable:
    found = parts.tables.get(artifact)
    if found is None:
        found = parts.tables[artifact] = read()
    return found


def _offered(stored: StoredArtifact) -> frozenset[int] | None:
    return None if stored.extent is None else frozenset(span.index for span in stored.extent.spans())


@contextmanager
def _arriving(parts: Parts, artifact: ArtifactId) -> Iterator[Served]:
    try:
        folder = parts.folder(leases.PARTIAL).child(artifact.hex)
    except NotFoundError as error:
        raise unknown(artifact) from error
    with folder:
        locks.wait(folder.fd, None, f"artifact {artifact.short}", shared=True)
        try:
            # Parsed again from the files, whose writer checked them before it wrote them.
            envelope = Envelope.parse(folder.read(ENVELOPE, MAX_ENVELOPE_BYTES))
            check_id(envelope, artifact)
            manifest = unjudged(envelope)
            table = _table(parts, artifact, lambda: manifest.check_leaves(folder.read(LEAVES, MAX_LEAF_TABLE_BYTES)))
        except (NotFoundError, ProtocolError, StoreError) as error:
            if not isinstance(error, NotFoundError) and not is_damage(error):
                raise
            raise unknown(artifact) from error  # not described yet, or not soundly
        yield Served(table, manifest.layout, None, parts)
