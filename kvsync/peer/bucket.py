"""A token bucket: never more than rate · t + burst bytes in any time t. Knows no files, peers or sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from kvsync_protocol.limits import KiB

LEAST_BURST: Final = 512 * KiB
"""As much as is written at once."""
BURST_S: Final = 0.1
"""At high rates the burst is what passes in so long: no sleep is shorter by much."""


class TokenBucket:
    """Safe for several threads. `rate` is in bytes per second, 0 for no limit, and may be set at any time."""

    def __init__(self, rate: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rate = rate
        self._tokens = float(self.burst)
        self._at = clock()

    @property
    def rate(self) -> int:
        return self._rate

    @property
    def burst(self) -> int:
        """The most that passes at once, in bytes."""
        return max(LEAST_BURST, int(self._rate * BURST_S))

    def set_rate(self, rate: int) -> None:
        """What has been saved up under the old rate stays, as far as the new burst holds it."""
        with self._lock:
            if rate != self._rate:
                self._fill()
                self._rate = rate
                self._tokens = min(self._tokens, float(self.burst))

    def take(self, size: int) -> float:
        """0.0 when `size` bytes, at most `burst`, may pass now, which counts them; else seconds until they might."""
        with self._lock:
            if not self._rate:
                return 0.0
            self._fill()
            size = min(size, self.burst)
            if self._tokens >= size:
                self._tokens -= size
                return 0.0
            return (size - self._tokens) / self._rate

    def give_back(self, size: int) -> None:
        """What was taken and did not pass after all."""
        with self._lock:
            self._tokens = min(self._tokens + size, float(self.burst))

    def _fill(self) -> None:
        now = self._clock()
        self._tokens = min(self._tokens + (now - self._at) * self._rate, float(self.burst))
        self._at = now
