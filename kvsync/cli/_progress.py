"""Progress bars on a terminal: tokens/s where tokens are computed, MB/s where bytes move.

Calls arrive from any thread, at any rate, for any number of stages.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from kvsync.progress import Progress as Report


class _Bars:
    """One bar per stage, made when the stage first reports. A stage that is back where it began is begun anew."""

    def __init__(self, drawn: Progress) -> None:
        self._drawn = drawn
        self._lock = threading.Lock()
        self._stages: dict[str, tuple[TaskID, float, int]] = {}

    def __call__(self, stage: str, done: int, total: int, unit: str) -> None:
        with self._lock:
            now = time.monotonic()
            if stage not in self._stages:
                # What a resumed run finds done already is no part of this run's rate.
                self._stages[stage] = self._drawn.add_task(stage, total=total, rate=""), now, done
            task, began, before = self._stages[stage]
            if done <= before:
                self._stages[stage], began, before = (task, now, done), now, done
            shown = rate(done - before, now - began, unit)
            self._drawn.update(task, completed=done, total=total, rate=shown)


def rate(done: int, elapsed_s: float, unit: str) -> str:
    """`412 tokens/s`, `318.2 MB/s`; empty before anything was measured, and for what is only counted."""
    if done <= 0 or elapsed_s <= 0:
        return ""
    if unit == "bytes":
        return f"{done / elapsed_s / 1e6:.1f} MB/s"
    return f"{done / elapsed_s:.0f} tokens/s" if unit == "tokens" else ""


@contextmanager
def bars(stream: TextIO) -> Iterator[Report]:
    """Bars on `stream` for as long as the context lasts."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=32),
        TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=Console(file=stream), transient=True, refresh_per_second=4) as drawn:
        yield _Bars(drawn)
