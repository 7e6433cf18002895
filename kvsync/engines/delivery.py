"""`Delivery`: blocks go to their sink on a thread of their own, in order, while the next one is computed.

    computing   | block 0 | block 1    | block 2    |          ends when the last is delivered
    sink                  | block 0 |  | block 1 |  | block 2 |
    memory: the block under way, one with the sink and one that waits for it; before one more the computation waits

Knows no tensors: what makes a block's bytes final, a copy from a device perhaps, is awaited on the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

from kvsync.engines.engine import BlockSink

WAITING: Final = 2
"""Blocks that are computed and not done with: one with the sink, one behind it. With the one under way, three."""

Tensors = Mapping[tuple[int, str], memoryview]


class Delivery:
    """Context manager around one computation; leaving it waits until all that was handed over is with the sink.

    What the sink raises ends the computation at its next block, or at the end, as the very same error; what had not
    been delivered by then is dropped. When the computation itself fails or is cancelled, the blocks that it
    completed are still delivered.
    """

    def __init__(self, sink: BlockSink) -> None:
        self._sink = sink
        self._waiting: list[tuple[int, int, Callable[[], Tensors]]] = []
        self._reached = 0
        self._changed = threading.Condition()
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="kvsync-delivery", daemon=True)
        self._started = False

    @property
    def reached(self) -> int:
        """Where the last block ends that the sink is done with, 0 before the first."""
        with self._changed:
            return self._reached

    def put(self, block: int, stop: int, tensors: Callable[[], Tensors]) -> None:
        """Hand over a block that ends at `stop`; waits while too many wait. Raises as the sink.

        `tensors` is called on the thread.
        """
        if not self._started:
            self._thread.start()
            self._started = True
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) < WAITING or self._failure is not None)
            self._check()
            self._waiting.append((block, stop, tensors))
            self._changed.notify_all()

    def finish(self) -> None:
        """Wait until every block is with the sink. Raises as the sink."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._started:
            self._thread.join()
        with self._changed:
            self._check()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                block, stop, tensors = self._waiting[0]
            try:
                self._sink(block, tensors())
            except BaseException as error:  # noqa: BLE001 (it is raised where the computation runs)
                with self._changed:
                    self._failure = error
                    self._waiting.clear()
                    self._changed.notify_all()
                return
            del tensors
            with self._changed:
                self._waiting.pop(0)
                self._reached = stop
                self._changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
            return
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._started:
            self._thread.join()
