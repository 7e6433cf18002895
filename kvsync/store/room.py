"""Opening a draft's account: lease its chunks, reserve its bytes, make room by eviction if need be."""

from __future__ import annotations

from collections.abc import Container, Iterable

from kvsync.errors import StoreError
from kvsync.store import leases
from kvsync.store.garbage import Collection
from kvsync.store.parts import Parts
from kvsync.store.quota import check_room, over_quota, usage
from kvsync_protocol.digest import Digest
from kvsync_protocol.leaves import Leaf


def open_account(
    parts: Parts,
    kind: str,
    name: Digest,
    leaves: Iterable[Leaf],
    expected: int = 0,
    wanted: Container[Digest] | None = None,
) -> None:
    """Register the draft whose lock the caller holds; arguments as of `leases.register`.

    Over quota, what gc may remove is removed first, artifacts that are worth least included; but only
    if that makes room enough.

    Raises:
        StoreError: `store.quota` or `store.full`; nothing is reserved then.
    """
    refused: StoreError | None = None
    with parts.index.writing() as db:
        known = leases.is_registered(db, kind, name)
        collection = Collection(db, parts)  # reconciles: dead drafts reserve nothing
        leases.register(db, kind, name, leaves, expected, wanted)
        leases.settle(db, parts.chunks, kind, name)
        if not leases.outstanding(db, kind, name):
            return  # nothing to write: a complete draft is finished on the fullest disk
        try:
            if any(over_quota(usage(db, parts.root, parts.limits))):
                collection.run(must_fit=True)
            check_room(usage(db, parts.root, parts.limits), parts.root)
        except StoreError as error:
            # Not raised in here: what was collected must be committed whether or not it was enough.
            refused = error
            leases.close(db, parts.chunks, kind, name)
            if not known:
                leases.release(db, kind, name)
    if refused is not None:
        raise refused
