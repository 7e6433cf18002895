"""One engine over one store, and the fresh computation to compare a graft with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvsync.engines.engine import Engine
from kvsync.graft import Graft, deposit, graft
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.signing import SigningKey

BLOCK = 16


@dataclass
class Bench:
    """One engine over one store, and the fresh computation to compare with."""

    engine: Engine
    store: Store
    key: SigningKey
    store_path: Path

    def deposit(self, tokens: list[int], **options: object) -> StoredArtifact:
        return deposit(self.store, self.engine, self.key, tokens, **options)  # type: ignore[arg-type]

    def graft(self, tokens: list[int], **options: object) -> Graft:
        return graft(self.store, [self.key.public], self.engine, tokens, **options)  # type: ignore[arg-type]

    def fresh(self, tokens: list[int], cuts: tuple[int, ...]) -> tuple[str, str]:
        """Digests of the last segment's logits and of 8 decode steps, computed under the given extra cuts."""
        schedule = self.engine.schedule
        for cut in cuts:
            schedule = schedule.with_boundary(cut)
        context = self.engine.new_context()
        *early, (start, stop) = schedule.segments(0, len(tokens))
        if early:
            self.engine.prefill(context, tokens[:start], schedule)
        logits = self.engine.extend(context, tokens[start:stop], schedule)
        return logits.sha256().hex, self.engine.decode_greedy(context, logits, 8)[1].sha256().hex

    def continued(self, found: Graft) -> tuple[str, str]:
        """The same digests, computed on a graft."""
        logits = self.engine.extend(found.context, found.next_tokens, found.schedule)
        return logits.sha256().hex, self.engine.decode_greedy(found.context, logits, 8)[1].sha256().hex


def words(count: int, seed: int = 0) -> list[int]:
    """Token ids below the tiny model's vocabulary; equal seeds share their beginnings."""
    return [(seed * 31 + i * i * 7 + i * 13) % 97 + 1 for i in range(count)]
