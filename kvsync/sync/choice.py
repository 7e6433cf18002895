"""How chunks go over the wire: as the settings say, or as this transfer's own measurements do.

    auto   plain ─► planes ─► the faster one ─► the other ─► the faster one ─► …
           TRY      TRY       STAY              TRY          STAY chunks each

A way is judged by the bytes of content that all streams finish in its turn, for they share the line: one stream's
encoded chunk among others' plain ones would only show what encoding costs it, not what it leaves to the others. Links
change, so the slower one is tried again now and then. Knows no encodings' inner life.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from kvsync.pack.shape import ChunkShape, leaf_shape
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.layout import Layout
from kvsync_protocol.limits import KiB

TRY: Final = 8
"""Chunks after which a way has shown how fast it is."""
STAY: Final = 96
"""Chunks in the faster way until the other has its next turn."""
MIN_BYTES: Final = 512 * KiB
"""Smaller chunks say more about latency than about rate."""

_WAYS: Final = {
    "identity": (Encoding.IDENTITY,),
    "zstd": (Encoding.ZSTD,),
    "planes": (Encoding.PLANES,),
    "auto": (Encoding.IDENTITY, Encoding.PLANES),
}


class EncodingChoice:
    """The encoding of the next chunk. One per transfer, for all its streams."""

    def __init__(self, setting: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._ways = _WAYS[setting]
        self._clock = clock
        self._lock = threading.Lock()
        self._rates: dict[Encoding, float] = {}  # bytes of content per second
        self._way, self._span, self._left = self._ways[0], TRY, TRY
        self._since: float | None = None
        self._bytes = 0

    def take(self) -> Encoding:
        """What to ask for next."""
        return self._way

    def finished(self, encoding: Encoding, size: int) -> None:
        """A chunk of `size` bytes, asked for in `encoding`, is here. One of the turn before counts for neither."""
        if size < MIN_BYTES or len(self._ways) == 1:
            return
        with self._lock:
            if encoding is not self._way:
                return
            now = self._clock()
            if self._since is None:  # the first of a turn was on its way while others went otherwise
                self._since = now
                return
            self._bytes += size
            self._left -= 1
            if not self._left:
                self._rates[self._way] = self._bytes / max(now - self._since, 1e-9)
                self._turn()

    def _turn(self) -> None:
        """Whose turn is next; the lock is held."""
        untried = [way for way in self._ways if way not in self._rates]
        best = max(self._rates, key=self._rates.__getitem__)
        if untried:
            self._begin(untried[0], TRY)
        elif self._span == STAY:
            self._begin(next(way for way in self._ways if way is not self._way), TRY)
        else:
            self._begin(best, STAY)

    def _begin(self, way: Encoding, span: int) -> None:
        self._way, self._span, self._left = way, span, span
        self._since, self._bytes = None, 0


class StreamEncoder:
    """One stream's use of the choice: what its chunks under way were asked for."""

    def __init__(self, choice: EncodingChoice, layout: Layout) -> None:
        self._choice = choice
        self._layout = layout
        self._asked: dict[int, Encoding] = {}

    def choose(self, index: int) -> Encoding:
        """For a chunk that is asked for next."""
        asked = self._asked[index] = self._choice.take()
        return asked

    def shape(self, index: int) -> ChunkShape | None:
        """What a chunk consists of, if the encoding chosen for it has to know."""
        return leaf_shape(self._layout, index) if self._asked[index] is Encoding.PLANES else None

    def finished(self, index: int, size: int) -> None:
        """The chunk is here."""
        self._choice.finished(self._asked.pop(index), size)
