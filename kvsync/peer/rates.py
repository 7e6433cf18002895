"""How fast bulk bytes may move, as settings and peer book say at this moment, and whether they may at all.

One bucket for the node and one for each peer, for each direction, shared by all transfers of a process. The files are
looked at again while transfers run, so that a change needs no restart.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from pathlib import Path
from typing import Final, Literal

from kvsync.config import Home, Settings
from kvsync.keys import PeerBook
from kvsync.peer.bucket import TokenBucket
from kvsync_protocol.errors import CodedError
from kvsync_protocol.signing import PublicKey

Direction = Literal["in", "out"]

LOOK_S: Final = 0.25
"""How old the last look at the files may be."""
TURN_S: Final = 0.25
"""What one stream moves at once takes no longer at the rate: all have turns before one looks stalled."""
_SLICE_S: Final = 0.1

log = logging.getLogger(__name__)


class Rates:
    """Those of one home. Safe for several threads."""

    @staticmethod
    def of(home: Home) -> Rates:
        """The same object for everybody in this process."""
        return _rates(home.root)

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._looked = float("-inf")
        self._unlimited = False
        self._seen: list[tuple[int, ...]] | None = None
        self._node = 0
        self._node_paused = False
        self._peers: dict[PublicKey, tuple[PublicKey, int]] = {}
        self._paused: frozenset[PublicKey] = frozenset()
        self._buckets: dict[tuple[Direction, PublicKey | None], TokenBucket] = {}

    def throttle(self, key: PublicKey) -> Throttle:
        """What holds for one peer."""
        return Throttle(self, key)

    def paused(self, key: PublicKey) -> bool:
        """Whether nothing moves to and from the peer for now."""
        with self._lock:
            self._look()
            return self._node_paused or key in self._paused

    @property
    def unlimited(self) -> bool:
        """Whether nobody has a limit, as the files said a moment ago. Takes no lock: it is asked for every piece,
        and streams that wait for each other there cost 5 % of the CPU time of a transfer."""
        return self._unlimited and time.monotonic() < self._looked + LOOK_S

    def buckets(self, key: PublicKey, direction: Direction) -> list[TokenBucket]:
        """Those that bytes of this peer pass; none when there is no limit."""
        with self._lock:
            self._look()
            listed, rate = self._peers.get(key, (key, 0))
            found = []
            for owner, wanted in ((None, self._node), (listed, rate)):
                if not wanted and (direction, owner) not in self._buckets:
                    continue
                bucket = self._buckets.setdefault((direction, owner), TokenBucket(wanted))
                bucket.set_rate(wanted)
                if wanted:
                    found.append(bucket)
            return found

    def limit(self, key: PublicKey) -> int:
        """Bytes per second that may go to the peer, and that may come from it; 0 for no limit."""
        with self._lock:
            self._look()
            _, rate = self._peers.get(key, (key, 0))
            return min((each for each in (self._node, rate) if each), default=0)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._looked + LOOK_S:
            return
        self._looked = now
        home = self._home
        state = [_state(path) for path in (home.config_file, home.peers_file, home.statements_file, home.paused_file)]
        if state == self._seen:
            return
        try:
            self._node = Settings.load(home).rate_bytes_per_s
            peers = PeerBook(home).peers()
        except CodedError as error:
            log.error("rates stay as they were: %s", error)
        else:
            self._peers = {key: (peer.key, peer.rate) for peer in peers for key in (peer.key, *peer.keys)}
            self._paused = frozenset(key for peer in peers if peer.paused for key in (peer.key, *peer.keys))
        self._node_paused = home.paused_file.exists()
        self._unlimited = not self._node and not any(rate for _, rate in self._peers.values())
        self._seen = state


class Throttle:
    """The rates of one peer, for one stream."""

    def __init__(self, rates: Rates, key: PublicKey) -> None:
        self._rates = rates
        self._key = key

    @property
    def paused(self) -> bool:
        return self._rates.paused(self._key)

    @property
    def unlimited(self) -> bool:
        return self._rates.unlimited

    def piece(self, most: int) -> int:
        """Bytes to move at once, at most `most`."""
        limit = self._rates.limit(self._key)
        return min(most, int(limit * TURN_S)) if limit else most

    def take(self, size: int, direction: Direction, ended: threading.Event, until: float) -> float:
        """Wait until `size` bytes may move, but not when `ended` or after `until`; seconds waited."""
        if self.unlimited:
            return 0.0
        began = time.monotonic()
        while (pause := self._ask(size, direction)) and not ended.is_set():
            now = time.monotonic()
            if now >= until:
                break
            ended.wait(min(pause, _SLICE_S, until - now))
        return time.monotonic() - began

    def _ask(self, size: int, direction: Direction) -> float:
        taken: list[TokenBucket] = []
        for bucket in self._rates.buckets(self._key, direction):
            pause = bucket.take(size)
            if pause:
                for other in taken:
                    other.give_back(size)
                return pause
            taken.append(bucket)
        return 0.0


@functools.lru_cache(maxsize=64)
def _rates(root: Path) -> Rates:
    return Rates(Home(root))


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return (0,)
    return status.st_ino, status.st_mtime_ns, status.st_size
