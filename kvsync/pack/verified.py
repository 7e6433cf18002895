"""Chunks that this process has verified, in sealed memory files: read again, they need no second hash.

A file in the store can be changed by anybody who may write there, so it is hashed at every use. A memory file
with its write seal set can be changed by nobody, this process included; it is reached through a descriptor that
never leaves the process, and is gone with it. Nothing is skipped across a reopen.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

from kvsync_protocol.digest import Digest

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class VerifiedChunks:
    """At most `limit` bytes of them; the least recently used go first. Thread-safe. Context manager."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._held: OrderedDict[Digest, tuple[int, int]] = OrderedDict()  # descriptor, size
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def bytes(self) -> int:
        """Memory held now."""
        return self._bytes

    def open(self, digest: Digest, size: int) -> int | None:
        """A descriptor of the chunk's verified bytes, for the caller to read by offset and close."""
        with self._lock:
            held = self._held.get(digest)
            if held is None or held[1] != size:  # another size than its bytes have is for the full check to refuse
                return None
            self._held.move_to_end(digest)
            return os.dup(held[0])

    def keep(self, digest: Digest, parts: Sequence[memoryview]) -> None:
        """Copy and seal bytes that the caller has just hashed where they lie; without memory for it, nothing."""
        size = sum(part.nbytes for part in parts)
        if size > self._limit:
            return
        with contextlib.suppress(OSError):
            self._add(digest, _sealed(parts), size)

    def close(self) -> None:
        with self._lock:
            while self._held:
                self._drop()

    def _add(self, digest: Digest, descriptor: int, size: int) -> None:
        with self._lock:
            if digest in self._held:
                os.close(descriptor)
                return
            self._held[digest] = descriptor, size
            self._bytes += size
            while self._bytes > self._limit:
                self._drop()

    def _drop(self) -> None:
        _, (descriptor, size) = self._held.popitem(last=False)
        self._bytes -= size
        os.close(descriptor)


def _sealed(parts: Sequence[memoryview]) -> int:
    """A memory file of these bytes that can be read and nothing else. Raises OSError."""
    descriptor = os.memfd_create("kvsync-chunk", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        for part in parts:
            at = 0
            while at < part.nbytes:
                at += os.write(descriptor, part[at:])
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
