"""The journal of a computation: which leaves are on disk, in artifact order, one line each.

    kvsync-journal 1
    <64 hex> <size> <CRC-32 of the line so far, 8 hex>

Append-only and synced line by line. Reading stops at the first line that is not whole: what a killed
process left half-written, and all after it, is computed again. Knows leaves, not chunks.
"""

from __future__ import annotations

import os
import re
import zlib
from typing import Final

from kvsync.errors import StoreError
from kvsync.store.folder import Folder, reported
from kvsync_protocol.digest import Digest
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.limits import MAX_CHUNK_BYTES, MAX_LEAVES

JOURNAL: Final = "journal"
_HEADER: Final = b"kvsync-journal 1\n"
_LINE: Final = re.compile(rb"(([0-9a-f]{64}) ([1-9][0-9]{0,7})) ([0-9a-f]{8})\n")
_MAX_BYTES: Final = MAX_LEAVES * 84 + len(_HEADER)


class Journal:
    """The open journal of one draft; its owner holds the draft's lock. Not thread-safe."""

    def __init__(self, folder: Folder) -> None:
        """Open or begin it and cut off a torn end.

        Raises:
            StoreError: `store.journal_version` when another version wrote it; `store.full`.
        """
        self._path = folder.path / JOURNAL
        self._fd = folder.open_file(JOURNAL, os.O_RDWR | os.O_CREAT)
        try:
            self.leaves, self._ends = self._read()
            if not self._ends:
                self._begin(folder)
            self._cut(self._ends[-1])
        except BaseException:
            self.close()
            raise

    def _read(self) -> tuple[list[Leaf], list[int]]:
        size = os.fstat(self._fd).st_size
        if size > _MAX_BYTES:
            raise StoreError("store.file_too_large", f"{self._path} is larger than any journal")
        data = b""
        while len(data) < size and (part := os.pread(self._fd, size - len(data), len(data))):
            data += part
        return parse(data, str(self._path))

    def _begin(self, folder: Folder) -> None:
        with reported(self._path):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, _HEADER, 0)
            os.fsync(self._fd)
            folder.sync()
        self._ends = [len(_HEADER)]

    def append(self, leaf: Leaf) -> None:
        """Add a leaf; on return it is on disk. Raises StoreError `store.full`, with nothing added."""
        line = _line(leaf)
        end = self._ends[-1]
        with reported(self._path):
            try:
                if os.pwrite(self._fd, line, end) != len(line):
                    raise StoreError("store.full", f"no space left for {self._path}", hint="kvsync gc")
                os.fdatasync(self._fd)
            except BaseException:
                os.ftruncate(self._fd, end)
                raise
        self.leaves.append(leaf)
        self._ends.append(end + len(line))

    def truncate(self, count: int) -> None:
        """Keep the first `count` leaves."""
        del self.leaves[count:], self._ends[count + 1 :]
        self._cut(self._ends[-1])

    def _cut(self, end: int) -> None:
        if os.fstat(self._fd).st_size != end:
            with reported(self._path):
                os.ftruncate(self._fd, end)
                os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def parse(data: bytes, name: str) -> tuple[list[Leaf], list[int]]:
    """Leaves of the whole lines, and where the header and each of them end; no ends without a header.

    Raises:
        StoreError: `store.journal_version`.
    """
    if not data.startswith(_HEADER):
        if not _HEADER.startswith(data):
            raise StoreError(
                "store.journal_version",
                f"{name} was written by another version",
                hint="finish with that version, or remove its folder",
            )
        return [], []
    leaves, ends = [], [len(_HEADER)]
    while (found := _LINE.match(data, ends[-1])) and int(found[4], 16) == zlib.crc32(found[1]):
        size = int(found[3])
        if size > MAX_CHUNK_BYTES:
            break
        leaves.append(Leaf(Digest.parse(found[2].decode()), size))
        ends.append(found.end())
    return leaves, ends


def read_journal(folder: Folder) -> list[Leaf]:
    """The leaves of a draft's journal, for those who only look. Raises as `Journal`."""
    return parse(folder.read(JOURNAL, _MAX_BYTES), str(folder.path))[0]


def _line(leaf: Leaf) -> bytes:
    text = f"{leaf.digest.hex} {leaf.size}".encode()
    return b"%b %08x\n" % (text, zlib.crc32(text))
