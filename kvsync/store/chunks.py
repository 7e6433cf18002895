"""`ChunkFiles`: chunk bytes under chunks/ab/<digest>, seen whole and verified or not at all.

Knows files and digests; who needs a chunk is the index's business.
"""

from __future__ import annotations

import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.folder import Folder
from kvsync.store.temp import TempFiles
from kvsync_protocol.digest import Digest

_SHARD: Final = re.compile(r"[0-9a-f]{2}", re.ASCII)
_CHUNK: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class ChunkFiles:
    """The chunks/ folder of a store. Thread-safe: it holds no state."""

    def __init__(self, folder: Folder, temp: TempFiles, floor_bytes: int) -> None:
        self._folder = folder
        self._temp = temp
        self._floor = floor_bytes

    def open(self, digest: Digest) -> int:
        """A descriptor for reading; the caller closes it, and checks the bytes it reads.

        Raises:
            NotFoundError: `store.unknown_chunk`.
            StoreError: `store.symlink`, `store.foreign`, `store.unreadable`.
        """
        try:
            with self._folder.child(digest.hex[:2]) as shard:
                return shard.open_file(digest.hex)
        except NotFoundError as error:
            raise NotFoundError("store.unknown_chunk", f"chunk {digest.short} is not here", digest=digest) from error

    def sizes(self, digests: Iterable[Digest]) -> dict[Digest, int]:
        """Those of `digests` that are here, with their sizes."""
        found = {}
        for name, members in groupby(sorted(set(digests), key=_raw), key=lambda d: d.hex[:2]):
            try:
                shard = self._folder.child(name)
            except NotFoundError:
                continue
            with shard:
                for digest in members:
                    status = shard.status(digest.hex)
                    if status is not None and stat.S_ISREG(status.st_mode):
                        found[digest] = status.st_size
        return found

    def has(self, digest: Digest) -> bool:
        return bool(self.sizes((digest,)))

    def publish(self, digest: Digest, size: int, pieces: Iterable[memoryview]) -> None:
        """Store `pieces`, `size` bytes together; the caller has their digest from these very bytes, or they
        raise at their end unless it is the right one.

        Raises:
            StoreError: `store.full` when the disk is, or would be below the floor; `store.unwritable`.
        """
        if self._floor and self._folder.free_bytes() - size < self._floor:
            raise below_floor(self._folder, self._floor)
        with self._folder.child(digest.hex[:2], create=True) as shard:
            self._temp.publish_pieces(pieces, shard, digest.hex, size)

    def remove(self, digest: Digest) -> None:
        """Delete a chunk that nobody references; nothing when it is not here."""
        try:
            with self._folder.child(digest.hex[:2]) as shard:
                shard.unlink(digest.hex)
        except NotFoundError:
            return

    def move_to(self, quarantine: Folder, digest: Digest) -> None:
        """Take a bad chunk out of service, keeping its bytes as evidence."""
        with self._folder.child(digest.hex[:2]) as shard:
            shard.move(digest.hex, quarantine, f"{digest.hex}.{secrets.token_hex(4)}")

    def sync(self, digests: Iterable[Digest]) -> None:
        """Make the names of these chunks durable; their bytes already are."""
        for name in sorted({digest.hex[:2] for digest in digests}):
            with self._folder.child(name) as shard:
                shard.sync()
        self._folder.sync()

    def shards(self) -> list[str]:
        """The folders that chunks stand in; a link in the place of one is passed over."""
        found = []
        for name in self._folder.names():
            if _SHARD.fullmatch(name) and (status := self._folder.status(name)) and stat.S_ISDIR(status.st_mode):
                found.append(name)
        return found

    def scan(self, shard: str) -> Iterator[tuple[Digest, int]]:
        """Digest and size of every chunk in a shard."""
        try:
            folder = self._folder.child(shard)
        except NotFoundError:
            return
        with folder:
            for name in folder.names():
                if not _CHUNK.fullmatch(name) or name[:2] != shard:
                    continue
                status = folder.status(name)
                if status and stat.S_ISREG(status.st_mode):
                    yield Digest(bytes.fromhex(name)), status.st_size

    def scan_all(self) -> dict[Digest, int]:
        """Every chunk here with its size."""
        return {digest: size for shard in self.shards() for digest, size in self.scan(shard)}


def _raw(digest: Digest) -> bytes:
    """To sort by: comparing the digests themselves takes ten times as long."""
    return digest.raw


def below_floor(folder: Folder, floor: int) -> StoreError:
    """The refusal of a write that would use space the store leaves to others."""
    return StoreError(
        "store.full",
        f"the disk of {folder.path} would have less than {floor} bytes free",
        hint="kvsync gc, kvsync rm, or a lower free_floor_bytes",
        free=folder.free_bytes(),
        floor=floor,
    )
