"""A stored chunk for sending: exactly as many bytes as its leaf says, in pieces that stay in the CPU's cache.

They are not hashed: the receiver hashes every byte, and a hash here could not replace that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from kvsync.errors import StoreError
from kvsync.store import Store
from kvsync_protocol.leaves import Leaf


class ChunkFile:
    """One chunk, open for reading. Context manager.

    Raises:
        NotFoundError: `store.unknown_chunk`.
        StoreError: `store.damaged_chunk` when the file has another size than the leaf.
    """

    def __init__(self, store: Store, leaf: Leaf) -> None:
        self.size = leaf.size
        self._descriptor = store.open_chunk(leaf.digest)
        if os.fstat(self._descriptor).st_size != leaf.size:
            os.close(self._descriptor)
            raise _damaged()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)

    def pieces(self, buffer: memoryview, size: int) -> Iterator[memoryview]:
        """All bytes in order, at most `size` at once, each piece in `buffer` until the next is asked for.

        Raises:
            StoreError: `store.damaged_chunk`, `store.unreadable`, also after the first piece.
        """
        at = 0
        while at < self.size:
            yield self._read(buffer[: min(size, self.size - at)], at)
            at += size

    def whole(self, buffer: memoryview) -> memoryview:
        """All bytes at once, in the first ones of `buffer`. Raises as `pieces`."""
        return self._read(buffer[: self.size], 0)

    def send(self, to: int, offset: int, size: int) -> int:
        """Let the kernel send at most `size` bytes from `offset` on to the socket `to`; how many went.

        Raises:
            StoreError: `store.damaged_chunk`; OSError as the socket does.
        """
        sent = os.sendfile(to, self._descriptor, offset, size)
        if not sent:
            raise _damaged()
        return sent

    def _read(self, view: memoryview, offset: int) -> memoryview:
        at = 0
        while at < len(view):
            try:
                got = os.preadv(self._descriptor, [view[at:]], offset + at)
            except OSError as error:
                raise StoreError("store.unreadable", f"a chunk cannot be read: {error.strerror}") from error
            if not got:
                raise _damaged()
            at += got
        return view


def _damaged() -> StoreError:
    return StoreError("store.damaged_chunk", "a chunk file has the wrong size", hint="kvsync fsck --repair")
