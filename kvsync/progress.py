"""How long work reports where it is. Knows nothing of terminals; the CLI draws, the daemon forwards."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Receives what is done of `total` in `unit` ("tokens", "bytes"). Calls may come from any thread."""

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None: ...


def silent(stage: str, done: int, total: int, unit: str) -> None:
    """The progress of those who do not watch."""
