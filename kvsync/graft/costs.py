"""`Costs`: how long computing and restoring really took on this host, and so what a graft or a computation will take.

    prefill of tokens start..stop     tokens · α + tokens · middle · β       attention grows with the position
    restore of so many bytes          bytes · α + β                          reading, hashing, copying; opening files

Kept per pair of fingerprints (model, dtype, device, threads) in one small file of the home. Processes that use one
home add to each other's observations; what one of them does not save is lost, and only time with it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvsync.config import Home
from kvsync.errors import KvsyncError, NotFoundError
from kvsync.files import exclusive, read_limited, write_atomic
from kvsync.graft.trend import Trend
from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest, hash_record
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.limits import KiB, MiB
from kvsync_protocol.strictjson import Fields

MAX_AGE_S: Final = 3600
"""Older measurements decide nothing, so that a disk that was slow once is tried again."""
MAX_MODELS: Final = 64
MAX_FILE_BYTES: Final = 64 * KiB
SAVE_EVERY: Final = 64
"""Observations in memory at most."""
_VERSION: Final = 1
_LAST_SECOND: Final = 2**50
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cost:
    """What is known of one pair of fingerprints. Moments in seconds of the epoch, 0 for never."""

    prefill: Trend = field(default_factory=Trend)
    prefilled: int = 0
    restore: Trend = field(default_factory=Trend)
    restored: int = 0

    def prefill_s(self, start: int, stop: int) -> float:
        """Seconds to compute the tokens from `start` to `stop`."""
        return self.prefill.predict(stop - start, (stop - start) * (start + stop) / 2)

    def restore_s(self, size: int) -> float:
        """Seconds to read, check and place `size` bytes."""
        return self.restore.predict(size, 1.0)

    @property
    def tokens_per_s(self) -> float:
        """Computed at the beginning of a document, the first thousand of them; 0 when nothing was measured."""
        seconds = self.prefill_s(0, 1000)
        return 1000 / seconds if seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        """Restored, of 64 MiB; 0 when nothing was measured."""
        seconds = self.restore_s(64 * MiB)
        return 64 * MiB / seconds if seconds else 0.0

    def known(self, now: float) -> bool:
        """Whether both were measured lately."""
        return all(0 <= now - then <= MAX_AGE_S for then in (self.prefilled, self.restored))


class Costs:
    """The observations of one home. Safe for several threads and processes.

    Args:
        home: the node's home.
        clock: seconds of the epoch.
    """

    def __init__(self, home: Home, *, clock: Callable[[], float] = time.time) -> None:
        self._path = home.costs_file
        self._lock_path = self._path.with_suffix(".lock")
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Digest, Cost] | None = None
        self._pending: list[tuple[Digest, Callable[[Cost], Cost]]] = []

    def of(self, fingerprints: Fingerprints) -> Cost:
        """What is known now; an empty `Cost` where nothing was measured."""
        with self._lock:
            return self._all().get(_key(fingerprints), Cost())

    def lately(self, fingerprints: Fingerprints) -> Cost | None:
        """The same if it was measured lately enough to decide by."""
        found = self.of(fingerprints)
        return found if found.known(self._clock()) else None

    def measured(self) -> int:
        """Of how many pairs of fingerprints anything is known."""
        with self._lock:
            return len(self._all())

    def latest(self) -> Cost | None:
        """Of the pair that something was measured of last."""
        with self._lock:
            known = self._all()
            return known[next(reversed(known))] if known else None

    def prefilled(self, fingerprints: Fingerprints, start: int, stop: int, seconds: float) -> None:
        """Tokens from `start` to `stop` were computed in so long."""
        tokens, now = stop - start, int(self._clock())
        if tokens > 0:
            middle = tokens * (start + stop) / 2
            self._learn(
                fingerprints,
                lambda cost: Cost(cost.prefill.learn(tokens, middle, seconds), now, cost.restore, cost.restored),
            )

    def restored(self, fingerprints: Fingerprints, size: int, seconds: float) -> None:
        """So many bytes were read, checked and placed in so long."""
        now = int(self._clock())
        if size > 0:
            self._learn(
                fingerprints,
                lambda cost: Cost(cost.prefill, cost.prefilled, cost.restore.learn(size, 1.0, seconds), now),
            )

    def save(self) -> None:
        """Add this process's observations to the file; one that cannot be written costs only time."""
        with self._lock:
            if self._pending:
                self._save()

    def _learn(self, fingerprints: Fingerprints, change: Callable[[Cost], Cost]) -> None:
        key = _key(fingerprints)
        with self._lock:
            known = self._all()
            known[key] = change(known.pop(key, Cost()))
            self._pending.append((key, change))
            if len(self._pending) >= SAVE_EVERY:
                self._save()

    def _save(self) -> None:
        pending, self._pending = self._pending, []
        try:
            with exclusive(self._lock_path):
                known = _load(self._path)
                for key, change in pending:
                    known[key] = change(known.pop(key, Cost()))  # the last used stands last
                latest = list(known.items())[-MAX_MODELS:]
                write_atomic(self._path, strictjson.dumps({"costs": [_row(*each) for each in latest], "version": 1}))
                self._known = dict(latest)
        except KvsyncError as error:
            logger.debug("what grafts and computations cost is not kept: %s (%s)", error, error.code)

    def _all(self) -> dict[Digest, Cost]:
        if self._known is None:
            self._known = _load(self._path)
        return self._known


def _key(fingerprints: Fingerprints) -> Digest:
    pair = [fingerprints.compatibility.digest.raw, fingerprints.numerics.digest.raw]
    return hash_record("kvsync/cost/1", pair)


def _row(key: Digest, cost: Cost) -> dict[str, object]:
    return {
        "key": str(key),
        "prefill": cost.prefill.spell(),
        "prefilled": cost.prefilled,
        "restore": cost.restore.spell(),
        "restored": cost.restored,
    }


def _load(path: Path) -> dict[Digest, Cost]:
    """What the file says; nothing when there is none, or none that can be read."""
    try:
        data = read_limited(path, MAX_FILE_BYTES, what="the file of costs")
        return parse_costs(data)
    except NotFoundError:
        return {}
    except (KvsyncError, MalformedError) as error:
        logger.debug("what is known of costs begins anew: %s (%s)", error, error.code)
        return {}


def parse_costs(data: bytes) -> dict[Digest, Cost]:
    """Read the file's content. Raises MalformedError `json.*`, `costs.*`, `receipt.figure`, `digest.syntax`."""
    fields = Fields(strictjson.loads(data, limit=MAX_FILE_BYTES, what="the file of costs"), "costs")
    fields.integer("version", _VERSION, _VERSION)
    found = {}
    for entry in fields.array("costs", limit=MAX_MODELS):
        row = Fields(entry, "costs")
        found[row.digest("key")] = Cost(
            Trend.parse(row.take("prefill")),
            row.integer("prefilled", 0, _LAST_SECOND),
            Trend.parse(row.take("restore")),
            row.integer("restored", 0, _LAST_SECOND),
        )
    return found
