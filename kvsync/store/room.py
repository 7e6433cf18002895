"""Opening a draft's account: lease its chunks, reserve its bytes, make room by eviction if need be."""

from __future__ import annotations

from collections.abc import Iterable

from kvsync.errors import StoreError
from kvsync.store import leases
from kvsync.store.garbage import collect
from kvsync.store.parts import Parts
from kvsync.store.quota import check_room, usage
from kvsync.store.reconcile import reconcile
from kvsync_protocol.digest import Digest
from kvsync_protocol.leaves import Leaf


def open_account(parts: Parts, kind: str, name: Digest, leaves: Iterable[Leaf], expected: int = 0) -> None:
    """Register the draft whose lock the caller holds.

    Over quota, what gc may remove is removed first, least recently used artifacts included.

    Raises:
        StoreError: `store.quota` or `store.full`, with nothing registered that was not before.
    """
    leaves = list(leaves)
    try:
        _register(parts, kind, name, leaves, expected)
    except StoreError as error:
        if error.code != "store.quota":
            raise
        over_bytes, over_files = error.fields["over_bytes"], error.fields["over_files"]
        collect(parts, need_bytes=int(str(over_bytes)), need_files=int(str(over_files)))
        _register(parts, kind, name, leaves, expected)


def _register(parts: Parts, kind: str, name: Digest, leaves: list[Leaf], expected: int) -> None:
    with parts.index.writing() as db:
        reconcile(db, parts)  # dead drafts reserve nothing
        leases.register(db, kind, name, leaves, expected)
        leases.settle(db, parts.chunks, kind, name)
        check_room(usage(db, parts.root, parts.limits), parts.root)
