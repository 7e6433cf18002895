"""How chunks go over the wire: as the settings say, or as this transfer's own measurements do.

With `auto`, the first chunks go plain, then one goes in planes, and whichever brings bytes of content faster is
asked for from then on; now and then the other is tried again, since links change. What is compared is what counts,
time from one finished chunk to the next on a stream: it holds the wire, both ends' codecs, the hash and the disk.
Knows no encodings' inner life.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from kvsync.pack.shape import ChunkShape, leaf_shape
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.layout import Layout
from kvsync_protocol.limits import KiB

RETRY_EVERY: Final = 24
"""One chunk in so many is moved in the way that seems slower."""
PATIENCE: Final = 8
"""Chunks until a first try that has told nothing is made again; meanwhile they go as they can."""
MIN_BYTES: Final = 512 * KiB
"""Smaller chunks say more about latency than about rate."""
_WEIGHT: Final = 0.5
"""Of the latest measurement in the running mean."""

_ROWS: Final = {
    "identity": (Encoding.IDENTITY,),
    "zstd": (Encoding.ZSTD,),
    "planes": (Encoding.PLANES,),
    "auto": (Encoding.IDENTITY, Encoding.PLANES),
}


class EncodingChoice:
    """The encoding of the next chunk. One per transfer, for all its streams."""

    def __init__(self, setting: str) -> None:
        self._ways = _ROWS[setting]
        self._lock = threading.Lock()
        self._taken = 0
        self._try_at = 0
        self._cost: dict[Encoding, float] = {}  # seconds per byte of content

    def take(self) -> Encoding:
        """What to ask for next."""
        with self._lock:
            self._taken += 1
            first = self._ways[0]
            unknown = [way for way in self._ways if way not in self._cost]
            if first in unknown:
                return first
            if unknown:
                if self._taken < self._try_at:
                    return first
                self._try_at = self._taken + PATIENCE
                return unknown[0]
            best = min(self._ways, key=self._cost.__getitem__)
            others = [way for way in self._ways if way is not best]
            return others[0] if others and self._taken % RETRY_EVERY == 0 else best

    def learn(self, encoding: Encoding, size: int, seconds: float) -> None:
        """A chunk of `size` bytes that was asked for in `encoding` took a stream so long."""
        if size < MIN_BYTES or len(self._ways) == 1:
            return
        with self._lock:
            cost = seconds / size
            before = self._cost.get(encoding, cost)
            self._cost[encoding] = before + _WEIGHT * (cost - before)


class StreamEncoder:
    """One stream's use of the choice: what each chunk under way was asked for, and how long it took."""

    def __init__(self, choice: EncodingChoice, layout: Layout) -> None:
        self._choice = choice
        self._layout = layout
        self._asked: dict[int, Encoding] = {}
        self._last: float | None = None

    def choose(self, index: int) -> Encoding:
        encoding = self._asked[index] = self._choice.take()
        return encoding

    def shape(self, index: int) -> ChunkShape | None:
        """What chunk `index` consists of, if its encoding has to know."""
        return leaf_shape(self._layout, index) if self._asked[index] is Encoding.PLANES else None

    def finished(self, index: int, size: int) -> None:
        """The first chunk measures nothing: its time holds the connection's start."""
        now, encoding = time.monotonic(), self._asked.pop(index)
        if self._last is not None:
            self._choice.learn(encoding, size, now - self._last)
        self._last = now
