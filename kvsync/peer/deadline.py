"""A moment after which work is given up, on the monotonic clock; wall clocks may jump."""

from __future__ import annotations

import time
from dataclasses import dataclass

from kvsync.errors import UnavailableError


@dataclass(slots=True)
class Deadline:
    """`at` is in seconds of time.monotonic(), which is also asyncio's loop.time() on Linux.

    It moves only by `extend`, for time in which nothing was to be done.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        return cls(time.monotonic() + seconds)

    def extend(self, seconds: float) -> None:
        self.at += seconds

    def remaining(self, most: float = float("inf")) -> float:
        """Seconds left, at most `most`.

        Raises:
            UnavailableError: `peer.deadline` when none are left.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise UnavailableError(
                "peer.deadline", "not done before the deadline", hint="raise transfer_deadline_s, or try again"
            )
        return min(left, most)
