"""A stored chunk's bytes for sending: exactly as many as its leaf says, in a buffer that is reused.

They are not hashed: the receiver hashes every byte, and a hash here could not replace that.
"""

from __future__ import annotations

import os

from kvsync.errors import StoreError
from kvsync.store import Store
from kvsync_protocol.leaves import Leaf


def read_chunk(store: Store, leaf: Leaf, buffer: memoryview) -> memoryview:
    """The chunk of `leaf` in the first bytes of `buffer`.

    Raises:
        NotFoundError: `store.unknown_chunk`.
        StoreError: `store.damaged_chunk` when the file has another size, `store.unreadable`.
    """
    view = buffer[: leaf.size]
    descriptor = store.open_chunk(leaf.digest)
    try:
        at = os.preadv(descriptor, [view], 0)
        while 0 < at < leaf.size:
            got = os.preadv(descriptor, [view[at:]], at)
            at = at + got if got else 0
        if at != leaf.size or os.fstat(descriptor).st_size != leaf.size:
            raise StoreError("store.damaged_chunk", "a chunk file has the wrong size", hint="kvsync fsck --repair")
    except OSError as error:
        raise StoreError("store.unreadable", f"a chunk cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return view
