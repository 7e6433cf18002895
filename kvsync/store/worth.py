"""What keeping an artifact is worth: over quota, what is worth least goes first.

    profit = cost / (bytes × time since its last use)         seconds of prefill, bytes, seconds

That is LNC-R with one reference (Scheuermann, Shim and Vingralek, WATCHMAN, VLDB 1996): 1 / time since the last use
estimates how often it is asked for, and cost / bytes what each of these times saves per byte kept. With equal costs
it is LRU.

    artifacts/<id>/cost    {"prefill_us":8214000}    written where the artifact was computed, and by nobody else

Without that file the cost is estimated from the number of tokens, at the pace of what was measured here: of the same
model if there is any. Nothing is written when an artifact is used, but its time, and nothing is in the index, so it
follows from the files on the fullest disk. Knows no refs, pins and locks: who may be evicted at all is gc's business.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kvsync.errors import NotFoundError, StoreError
from kvsync.store.artifacts import ArtifactFiles
from kvsync.store.extent import last_position
from kvsync.store.folder import Folder
from kvsync.store.stored import COST
from kvsync.store.temp import TempFiles
from kvsync_protocol import strictjson
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import KiB

MAX_COST_BYTES: Final = 4 * KiB
QUADRATIC_TOKENS: Final = 8192
"""Where attention, whose work grows with the position, has cost as much as all that does not."""
PACE_S: Final = 1e-3
"""Seconds for a token where nothing has been measured; it decides nothing, since then all have the same pace."""
MIN_AGE_S: Final = 1.0
"""What was used just now was used just now, whatever the clocks say."""


def effort(tokens: int) -> float:
    """The work of a prefill, in tokens without attention to others."""
    return tokens + tokens * tokens / QUADRATIC_TOKENS


def whole_cost(seconds: float, computed_from: int, tokens: int) -> float:
    """Seconds that all of it would have taken, when the first `computed_from` tokens were not computed again."""
    return seconds * effort(tokens) / (effort(tokens) - effort(computed_from))


def write_cost(temp: TempFiles, folder: Folder, seconds: float) -> None:
    """Say in an artifact's folder how long computing it took. Raises StoreError `store.full`."""
    temp.publish(strictjson.dumps({"prefill_us": max(1, round(seconds * 1e6))}), folder, COST)


def read_cost(files: ArtifactFiles, artifact: ArtifactId) -> float | None:
    """Seconds, as measured here; None when they were not, or the file does not tell."""
    try:
        with files.open(artifact) as folder:
            if folder.status(COST) is None:
                return None
            fields = strictjson.Fields(
                strictjson.loads(folder.read(COST, MAX_COST_BYTES), limit=MAX_COST_BYTES, what="the cost"), "cost"
            )
        found = fields.integer("prefill_us", 1, strictjson.MAX_SAFE_INTEGER)
        fields.done()
    except (ProtocolError, StoreError, NotFoundError):
        return None  # a damaged note costs an estimate
    return found / 1e6


@dataclass(frozen=True, slots=True)
class _Kept:
    """What the index knows of an artifact here: the tokens up to the last place at which a graft can begin."""

    model: bytes
    tokens: int
    bytes: int


def by_profit(
    db: sqlite3.Connection, files: ArtifactFiles, artifacts: Collection[ArtifactId], now: float | None = None
) -> list[ArtifactId]:
    """`artifacts`, what is worth least first; of equals what was used earliest. `now` in seconds of the epoch."""
    moment = time.time() if now is None else now
    wanted = set(artifacts)
    kept = {artifact: found for artifact, found in _kept(db) if artifact in wanted}
    measured = {artifact: cost for artifact in kept if (cost := read_cost(files, artifact)) is not None}
    pace = _Pace((kept[artifact].model, cost / effort(kept[artifact].tokens)) for artifact, cost in measured.items())
    ranked = []
    for artifact, found in kept.items():
        used = files.last_used(artifact)
        cost = measured.get(artifact, pace.of(found.model) * effort(found.tokens))
        age = max(MIN_AGE_S, moment - used / 1e9)
        ranked.append((cost / (max(1, found.bytes) * age), used, artifact))
    return [artifact for _, _, artifact in sorted(ranked)]


def _kept(db: sqlite3.Connection) -> Iterator[tuple[ArtifactId, _Kept]]:
    for raw, model, tokens, size, extent in db.execute(
        "SELECT id, compatibility, token_count, bytes, extent FROM artifacts"
    ):
        end = tokens if extent is None else last_position(extent)
        yield ArtifactId(Digest(raw)), _Kept(model, end, size)


class _Pace:
    """Seconds of an effort of one token, by model."""

    def __init__(self, measured: Iterable[tuple[bytes, float]]) -> None:
        by_model: defaultdict[bytes, list[float]] = defaultdict(list)
        for model, pace in measured:
            by_model[model].append(pace)
        self._by_model = {model: statistics.median(paces) for model, paces in by_model.items()}
        self._other = statistics.median(self._by_model.values()) if self._by_model else PACE_S

    def of(self, model: bytes) -> float:
        return self._by_model.get(model, self._other)
