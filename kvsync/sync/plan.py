"""Which chunks a transfer has to move, handed out to streams one by one."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Final

from kvsync.progress import Progress
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.leaves import Leaf

MAX_RESENDS: Final = 3
"""Times a chunk with wrong bytes is asked for again before the peer is blamed."""


class Plan:
    """The leaves still to move. Safe for several threads.

    `take` hands out an index, which comes back by `done`, `put_back` (the connection broke) or
    `refused` (the bytes were wrong).
    """

    def __init__(self, leaves: Sequence[Leaf], missing: Iterable[int], progress: Progress, stage: str) -> None:
        self._leaves = leaves
        self._left: deque[int] = deque()
        self._lock = threading.Lock()
        self._faults: Counter[int] = Counter()
        self._progress = progress
        self._stage = stage
        self.bytes_total = sum(leaf.size for leaf in leaves)
        self.chunks_planned = 0
        self.bytes_planned = 0
        self.chunks_moved = 0
        self.bytes_moved = 0
        self.bytes_wire = 0
        self.resent = 0
        self.extend(missing)

    @property
    def bytes_here(self) -> int:
        """What the receiving side had before."""
        return self.bytes_total - self.bytes_planned

    def extend(self, missing: Iterable[int]) -> int:
        """Plan further leaves; how many they are."""
        added = list(missing)
        with self._lock:
            self._left.extend(added)
            self.chunks_planned += len(added)
            self.bytes_planned += sum(self._leaves[index].size for index in added)
        return len(added)

    def leaf(self, index: int) -> Leaf:
        return self._leaves[index]

    def take(self) -> int | None:
        """The next index, or None when none is waiting."""
        with self._lock:
            return self._left.popleft() if self._left else None

    def put_back(self, indices: Iterable[int]) -> None:
        """Return what was taken and not moved, to be taken next."""
        with self._lock:
            self._left.extendleft(reversed(list(indices)))

    def done(self, index: int, wire: int) -> None:
        """Chunk `index` has arrived, verified, by `wire` bytes on the network."""
        with self._lock:
            self.chunks_moved += 1
            self.bytes_moved += self._leaves[index].size
            self.bytes_wire += wire
            moved = self.bytes_here + self.bytes_moved
        self._progress(self._stage, moved, self.bytes_total, "bytes")

    def refused(self, index: int, error: IntegrityError | MalformedError, peer: str) -> None:
        """Put a chunk with wrong bytes back, unless that happened too often.

        The digest is never blamed: another peer may have the right bytes.

        Raises:
            IntegrityError, MalformedError: the code of `error`, naming chunk and peer.
        """
        with self._lock:
            self._faults[index] += 1
            faults = self._faults[index]
            if faults <= MAX_RESENDS:
                self.resent += 1
                self._left.appendleft(index)
                return
        raise type(error)(
            error.code,
            f"chunk {index} was wrong {faults} times from {peer}: {error.message}",
            hint="pull from another peer; what was verified is kept",
            index=index,
            peer=peer,
        ) from error
