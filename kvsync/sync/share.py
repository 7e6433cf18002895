"""`Share`: one provider's part in a plan: what it has, what it is asked for next, and how it has behaved.

What fewest providers have is asked for first. While other nodes are still getting the artifact, too, and provide what
they have, each takes from the complete providers what falls to it by its key, and leaves the rest to the others as
long as they bring it faster: so each chunk leaves a complete provider about once. When nothing is left to begin, what
somebody else has been sending for long is asked for once more, and the first good copy counts.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Final

from kvsync_protocol.errors import CodedError, IntegrityError, MalformedError
from kvsync_protocol.have import Have

if TYPE_CHECKING:
    from kvsync.errors import NotFoundError
    from kvsync.sync.plan import Plan

MAX_RESENDS: Final = 3
"""Times a chunk with wrong bytes is asked for again before the peer is given up."""
MAX_GONE: Final = 16
"""Chunks that a provider says it has and then has not, before it is given up."""
LOOK: Final = 256
"""Waiting chunks among which the rarest is looked for."""
ENDGAME_S: Final = 0.3
ENDGAME_FACTOR: Final = 3.0
"""What somebody else has been sending for so long, and for so many times as long as this provider takes for it, is
asked for once more."""
GRACE_S: Final = 0.3
"""So long a complete provider's stream waits for what others fetch, even when nothing has come from them yet."""
WINDOW_S: Final = 2.0
"""Over which the speed of a provider is measured."""
_TICK_S: Final = 0.1


class Share:
    """Made by `Plan.join`. Safe for several threads: a provider's streams use one share."""

    def __init__(self, plan: Plan, name: str, key: bytes) -> None:
        self.plan = plan
        self.name = name
        self.ended: CodedError | None = None
        """Why the provider serves no more."""
        self.leading = 0
        """While this provider serves alone, nothing shares the line with so many first leaves: a graft can begin with
        the first block."""
        self._arrived: set[int] = set()
        self.chunks = 0
        self.bytes = 0
        self.wrong = 0
        self._key = key
        self._have: Have | None = None
        self._gone: set[int] = set()
        self._faults: Counter[int] = Counter()
        self._arrivals: deque[tuple[float, int]] = deque()
        self._cost: float | None = None  # seconds per byte and stream
        self._held_since: float | None = None
        self._marks: dict[int, bytes] = {}

    @property
    def is_partial(self) -> bool:
        """Whether the provider has not all of it, and so may have more later."""
        return self._have is not None and self._have.bitmap is not None

    def learn(self, have: Have) -> None:
        """What the provider has now."""
        with self.plan.changed:
            self._have = have
            self.plan.changed.notify_all()

    def has(self, index: int) -> bool:
        return index not in self._gone and (self._have is None or index in self._have)

    # streams

    def take(self) -> int | None:
        """The next chunk to ask this provider for, or None when there is none now."""
        with self.plan.changed:
            index = self._find()
            if index is not None:
                self._arrived.discard(index)
                self.plan.begin(self, index)
                self._held_since = None
            return index

    def wait(self, stopping: threading.Event, seconds: float = float("inf")) -> bool:
        """Until there is something to take; False when that is not so after `seconds`, or never again."""
        until = time.monotonic() + seconds
        with self.plan.changed:
            while not stopping.is_set() and not self.is_over:
                if self._find() is not None:
                    return True
                left = until - time.monotonic()
                if left <= 0:
                    break
                alone = len(self.plan.shares) == 1
                self.plan.changed.wait(min(left, 1.0 if alone else _TICK_S))
        return False

    @property
    def is_over(self) -> bool:
        """Nothing will ever be taken again."""
        return self.ended is not None or self.plan.complete

    def put_back(self, index: int) -> None:
        """Return what was taken and not moved, to be taken next."""
        with self.plan.changed:
            self.plan.give_up(self, index)
            self.plan.changed.notify_all()

    def done(self, index: int, wire: int, *, encrypted: bool = True) -> None:
        """Chunk `index` has arrived, verified, by `wire` bytes on the network."""
        now, size = time.monotonic(), self.plan.leaf(index).size
        with self.plan.changed:
            cost = self.plan.finish(self, index, wire, encrypted=encrypted) / max(1, size)
            self._cost = cost if self._cost is None else 0.7 * self._cost + 0.3 * cost
            self._arrivals.append((now, size))
            self.chunks += 1
            self.bytes += size
            self.plan.changed.notify_all()
        self.plan.report()

    def arrived(self, index: int) -> None:
        """All bytes of a chunk have come; they are still to be decoded and verified, while the line is free."""
        if index < self.leading:
            with self.plan.changed:
                self._arrived.add(index)
                self.plan.changed.notify_all()

    def spoiled(self, index: int) -> None:
        """Put back a chunk that anybody on the way can have changed: that speaks against nobody."""
        with self.plan.changed:
            self.plan.resent += 1
            self.plan.give_up(self, index)
            self.plan.changed.notify_all()

    def refused(self, index: int, error: IntegrityError | MalformedError) -> None:
        """Put a chunk with wrong bytes back, unless this provider has sent too many.

        The digest is never blamed: another provider may have the right bytes, and is asked first.

        Raises:
            IntegrityError, MalformedError: the code of `error`, naming chunk and peer.
        """
        with self.plan.changed:
            self._faults[index] += 1
            self.wrong += 1
            alone = len(self.plan.live) == 1
            faults = self._faults[index] if alone else self.wrong
            if faults > MAX_RESENDS:
                self.ended = type(error)(
                    error.code,
                    f"chunk {index} was wrong {self._faults[index]} times from {self.name}: {error.message}",
                    hint="pull from another peer; what was verified is kept",
                    index=index,
                    peer=self.name,
                )
            else:
                self.plan.resent += 1
            self.plan.give_up(self, index)
            self.plan.changed.notify_all()
            if self.ended is not None:
                raise self.ended from error

    def gone(self, index: int, error: NotFoundError) -> None:
        """The provider has not what it said it had. Raises `error` when nobody else is there, or too often."""
        with self.plan.changed:
            self._gone.add(index)
            if len(self.plan.live) == 1 or len(self._gone) > MAX_GONE:
                self.ended = error
            self.plan.give_up(self, index)
            self.plan.changed.notify_all()
            if self.ended is not None:
                raise self.ended

    def end(self, error: CodedError) -> None:
        """The provider serves no more, for this reason."""
        with self.plan.changed:
            self.ended = self.ended or error
            self.plan.changed.notify_all()

    # choosing; the plan's lock is held

    def can_help(self) -> bool:
        """Whether it has anything that is waiting."""
        return any(self._may(index) for index in self.plan.waiting)

    def _find(self) -> int | None:
        if self.is_over:
            return None
        live, waiting = self.plan.live, filter(self._may, self.plan.waiting)
        if len(live) == 1:
            index = next(waiting, None)
            return None if index is not None and index >= self.leading and self._is_leading() else index
        candidates = list(islice(waiting, LOOK))
        if not candidates:
            return self._once_more()
        fellows = [share for share in live if share.is_partial]
        best = min(candidates, key=lambda index: self._order(index, live, fellows))
        if self.is_partial or not fellows:
            return best
        rare = not any(fellow.has(best) for fellow in fellows)
        return best if (rare and self._is_mine(best, fellows)) or not self._left_to(fellows, best) else None

    def _is_leading(self) -> bool:
        under_way = self.plan.under_way.items()
        return any(i < self.leading and i not in self._arrived and self in movers for i, movers in under_way)

    def _may(self, index: int) -> bool:
        if not self.has(index):
            return False
        if not self._faults[index]:
            return True
        return not any(
            other is not self and other.has(index) and not other._faults[index] for other in self.plan.live
        )

    def _order(self, index: int, live: list[Share], fellows: list[Share]) -> tuple[int, bool, bytes]:
        return sum(share.has(index) for share in live), not self._is_mine(index, fellows), self.plan.mark(index)

    def _is_mine(self, index: int, fellows: list[Share]) -> bool:
        own = self.plan.mark(index)
        return all(own > fellow._mark(index) for fellow in fellows)

    def _mark(self, index: int) -> bytes:
        found = self._marks.get(index)
        if found is None:
            found = self._marks[index] = mark(self._key, index)
        return found

    def _left_to(self, fellows: list[Share], index: int) -> bool:
        """Whether others still getting bring more than this provider's stream would."""
        now = time.monotonic()
        if self._held_since is None:
            self._held_since = now
        size = self.plan.leaf(index).size
        expected = (self._cost or 0.0) * size
        if now - self._held_since < max(GRACE_S, 2 * expected):
            return True
        return self._cost is not None and sum(fellow.speed(now) for fellow in fellows) * self._cost >= 1.0

    def speed(self, now: float) -> float:
        """Bytes per second of late."""
        while self._arrivals and self._arrivals[0][0] < now - WINDOW_S:
            self._arrivals.popleft()
        return sum(size for _, size in self._arrivals) / WINDOW_S

    def _once_more(self) -> int | None:
        now = time.monotonic()
        for index, movers in self.plan.under_way.items():
            if len(movers) != 1 or self in movers or not self._may(index):
                continue
            patience = ENDGAME_FACTOR * (self._cost or 0.0) * self.plan.leaf(index).size
            if now - next(iter(movers.values())) > max(ENDGAME_S, patience):
                return index
        return None


def mark(key: bytes, index: int) -> bytes:
    """A number that a node and a chunk have in common, the same for all who know the node's key."""
    return hashlib.sha256(key + index.to_bytes(8)).digest()[:8]
