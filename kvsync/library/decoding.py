"""Tokens one after another until the model ends, a stop text comes, or the limit is reached.

Each token is computed by a call of its own, exactly as `Engine.decode_greedy` makes it, whatever stands before it in
the context and however it got there. Sampling takes its numbers from SHA-256 over seed, attempt and step, so that it
can be repeated on any host that computes the same logits.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvsync.engines.engine import Context, Engine, Logits
from kvsync_protocol.digest import hash_record
from kvsync_protocol.schedule import Schedule

SAMPLE_TAG: Final = "kvsync/sample/1"
_WINDOW: Final = 32
"""Last tokens in whose text a stop is looked for."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one attempt draws: `temperature` above 0, `top_p` in (0, 1], `seed` and `attempt` below 2^64."""

    temperature: float
    top_p: float
    seed: int
    attempt: int

    def number(self, step: int) -> float:
        """The number in [0, 1) for token `step`: the first 53 bits of the record's hash, over 2^53."""
        drawn = hash_record(SAMPLE_TAG, [struct.pack(">QQQ", self.seed, self.attempt, step)])
        return (int.from_bytes(drawn.raw[:8], "big") >> 11) / 2**53


@dataclass(frozen=True, slots=True)
class Decoded:
    """All tokens that were taken, an end included, and their text without it, without the stop and what follows."""

    tokens: tuple[int, ...]
    text: str


def decode(
    engine: Engine,
    context: Context,
    logits: Logits,
    schedule: Schedule,
    limit: int,
    *,
    sampling: Sampling | None = None,
    stops: Sequence[str] = (),
    tell: Callable[[], None] = lambda: None,
) -> Decoded:
    """Go on behind `context`, whose last position gave `logits`; at most `limit` tokens, and as the model has room.

    `tell` is called after each token. Raises as the engine.
    """
    chosen: list[int] = []
    limit = min(limit, engine.max_tokens - context.position)
    while len(chosen) < limit:
        token = _next(logits, sampling, len(chosen))
        chosen.append(token)
        tell()
        if token in engine.ends or (stops and _stop(engine.decode(chosen[-_WINDOW:]), stops) is not None):
            break
        if len(chosen) < limit:
            logits = engine.prefill(context, [token], schedule)
    return _decoded(engine, chosen, stops)


def decode_rows(
    engine: Engine,
    context: Context,
    logits: Logits,
    limit: int,
    samplings: Sequence[Sampling],
    *,
    budget: int,
    stops: Sequence[str] = (),
    tell: Callable[[], None] = lambda: None,
) -> list[Decoded]:
    """As `decode`, several attempts side by side, each at most `limit` tokens long; `context` stays as it is.

    When all together have used up `budget` tokens they end as they are, the first ones at most a token longer.
    Repeats under equal numerics with as many rows. Those that have ended leave once they are a quarter of the batch.
    """
    cache = context.repeated(len(samplings))
    limit = min(limit, engine.max_tokens - context.position)
    rows: list[list[int]] = [[] for _ in samplings]
    batch = list(range(len(rows)))
    running = set(batch)
    found = [logits.last()] * len(rows)
    for step in range(limit):
        tokens = [_next(one, samplings[row], step) for one, row in zip(found, batch, strict=True)]
        for row, token in zip(batch, tokens, strict=True):
            if row in running and budget:
                rows[row].append(token)
                budget -= 1
                tell()
                if token in engine.ends or (stops and _stop(engine.decode(rows[row][-_WINDOW:]), stops) is not None):
                    running.remove(row)
        if not running or not budget or step + 1 == limit:
            break
        if len(running) <= 0.75 * len(batch):
            kept = [place for place, row in enumerate(batch) if row in running]
            cache = engine.select_rows(cache, kept)
            batch, tokens = [batch[place] for place in kept], [tokens[place] for place in kept]
        computed = engine.step_rows(cache, tokens)
        found = [computed.at(place) for place in range(len(batch))]
    return [_decoded(engine, row, stops) for row in rows]


def _decoded(engine: Engine, chosen: Sequence[int], stops: Sequence[str]) -> Decoded:
    kept = chosen[:-1] if chosen and chosen[-1] in engine.ends else chosen
    text = engine.decode(kept) if kept else ""
    return Decoded(tuple(chosen), text[: _stop(text, stops)].strip())


def _next(logits: Logits, sampling: Sampling | None, step: int) -> int:
    if sampling is None:
        return logits.last().argmax()[0]
    return logits.draw(sampling.temperature, sampling.top_p, sampling.number(step))


def _stop(text: str, stops: Sequence[str]) -> int | None:
    """Where the first of the stops begins; None without one."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
