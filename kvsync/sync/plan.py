"""Which chunks a transfer has to move, and which of its providers moves which: one plan for all their streams.

waiting ─take─► under way ─done─► moved
   ▲                │
   └── put_back ────┘   the connection broke, the bytes were wrong, the provider is gone
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from kvsync.progress import Progress
from kvsync.sync.share import Share, mark
from kvsync_protocol.leaves import Leaf


class Plan:
    """The leaves still to move. Safe for several threads; `changed` guards everything and tells of every change.

    `own` is this node's own key: nodes that get the same artifact at once divide by their keys who asks for what.
    `asked` are the leaves that the transfer is for, here or not; None for all of them.
    """

    def __init__(
        self,
        leaves: Sequence[Leaf],
        missing: Iterable[int],
        progress: Progress,
        stage: str,
        own: bytes = b"",
        asked: Collection[int] | None = None,
    ) -> None:
        self.own = own
        self.changed = threading.Condition()
        self.shares: list[Share] = []
        self.waiting: dict[int, None] = {}  # in order
        self.under_way: defaultdict[int, dict[Share, float]] = defaultdict(dict)  # who is moving it, since when
        self._leaves = leaves
        self._moved: set[int] = set()
        self._marks: dict[int, bytes] = {}
        self._progress = progress
        self._stage = stage
        self.chunks_total = len(leaves) if asked is None else len(asked)
        self.bytes_total = sum(leaf.size for leaf in (leaves if asked is None else [leaves[i] for i in asked]))
        self.chunks_planned = 0
        self.bytes_planned = 0
        self.chunks_moved = 0
        self.bytes_moved = 0
        self.bytes_wire = 0
        self.bytes_unencrypted = 0
        self.resent = 0
        self.extend(missing)

    @property
    def bytes_here(self) -> int:
        """What the receiving side had before."""
        return self.bytes_total - self.bytes_planned

    @property
    def complete(self) -> bool:
        """Nothing is waiting and nothing under way."""
        return not self.waiting and not self.under_way

    def extend(self, missing: Iterable[int]) -> int:
        """Plan further leaves; how many they are."""
        added = list(missing)
        with self.changed:
            self._moved.difference_update(added)
            self.waiting.update(dict.fromkeys(added))
            self.chunks_planned += len(added)
            self.bytes_planned += sum(self._leaves[index].size for index in added)
            self.changed.notify_all()
        return len(added)

    def join(self, name: str, key: bytes = b"") -> Share:
        """A provider's share; it has everything until `Share.learn` says otherwise."""
        share = Share(self, name, key)
        with self.changed:
            self.shares.append(share)
        return share

    def leaf(self, index: int) -> Leaf:
        return self._leaves[index]

    def is_moved(self, index: int) -> bool:
        return index in self._moved

    @property
    def live(self) -> list[Share]:
        """The shares of providers that have not gone."""
        return [share for share in self.shares if share.ended is None]

    def wake(self) -> None:
        """Let everybody who waits look again."""
        with self.changed:
            self.changed.notify_all()

    # for shares, which hold the lock

    def mark(self, index: int) -> bytes:
        """This node's own place in the order of those who might ask for a chunk first."""
        found = self._marks.get(index)
        if found is None:
            found = self._marks[index] = mark(self.own, index)
        return found

    def begin(self, share: Share, index: int) -> None:
        self.waiting.pop(index, None)
        self.under_way[index][share] = time.monotonic()

    def give_up(self, share: Share, index: int) -> None:
        """`share` does not move it any more; unless somebody else does, it is taken next."""
        movers: Mapping[Share, float] = self.under_way.get(index, {})
        self.under_way[index].pop(share, None)
        if not movers:
            self.under_way.pop(index, None)
            if index not in self._moved:
                self.waiting = {index: None, **self.waiting}

    def finish(self, share: Share, index: int, wire: int, *, encrypted: bool) -> float:
        """Count it, once; how long it took this share."""
        took = time.monotonic() - self.under_way.get(index, {}).get(share, time.monotonic())
        self.bytes_wire += wire
        self.bytes_unencrypted += 0 if encrypted else wire
        if index not in self._moved:
            self._moved.add(index)
            self.waiting.pop(index, None)
            self.chunks_moved += 1
            self.bytes_moved += self._leaves[index].size
        self.under_way[index].pop(share, None)
        if not self.under_way[index]:
            del self.under_way[index]
        return took

    def report(self) -> None:
        """Tell how far it is."""
        self._progress(self._stage, self.bytes_here + self.bytes_moved, self.bytes_total, "bytes")
