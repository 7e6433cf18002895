"""When the compiled splitter is loaded: once a process has coded so much that loading it would have been repaid."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from kvsync.pack.pieces import Piece
from kvsync.pack.splitter import Planes, Splitter, Splitting
from kvsync_protocol.limits import GiB

LOAD_AFTER: Final = GiB
"""Importing numba takes the CPU time that compiled code saves in about so many bytes."""

log = logging.getLogger(__name__)


class Loader:
    """Of one process. Safe for several threads."""

    def __init__(self, load_after: int = LOAD_AFTER) -> None:
        self._lock = threading.Lock()
        self._left = load_after
        self._thread: threading.Thread | None = None
        self._loaded: Splitting | None = None

    def splitter(self, size: int) -> Splitting | None:
        """The compiled one, if it is here by now; `size` bytes are about to be coded. Never waits."""
        if self._loaded is None and self._thread is None:
            with self._lock:
                self._left -= size
                if self._left < 0 and self._thread is None:
                    self._thread = threading.Thread(target=self.load, name="kvsync-compile")
                    with contextlib.suppress(RuntimeError):  # no thread to be had: numpy goes on
                        self._thread.start()
        return self._loaded

    def load(self) -> bool:
        """Load it now: half a second, a second or two the first time on a machine. False where it cannot be had."""
        if sys.byteorder != "little":
            return False
        try:
            from kvsync.pack.compiled import CompiledSplitter

            found = CompiledSplitter()
        except ImportError as error:
            log.debug("chunks are coded without numba: %s", error)
            return False
        except Exception:  # of numba or LLVM, or no place for the code: nothing that must end a transfer
            log.exception("numba fails here; chunks are coded without it")
            return False
        if not agrees(found):
            log.error("numba compiles the codec wrongly here; chunks are coded without it")
            return False
        self._loaded = found
        return True


def agrees(one: Splitting) -> bool:
    """Whether it makes of words of every value what numpy makes of them, and back."""
    centres = np.arange(1024, dtype=np.uint16).reshape(1, 1, 1024) * np.uint16(97)
    piece = Piece(slice(0, 1 << 16), (1, 64, 1024), centres)
    every = np.arange(1 << 16, dtype=np.uint16)
    for numbers in (every, every.astype(np.uint32) * np.uint32(0x10003)):
        made = [_planes(splitter, numbers, piece) for splitter in (one, Splitter())]
        back = np.zeros_like(numbers)
        one.join(made[1], piece, back)
        rows = numbers.reshape(4, 16, 1024)
        sums = [splitter.sums(rows, 3) for splitter in (one, Splitter())]
        pairs = [*zip(*made, strict=True), (back, numbers), sums]
        if not all(np.array_equal(mine, theirs) for mine, theirs in pairs):
            return False
    return True


def _planes(splitter: Splitting, numbers: npt.NDArray[Any], piece: Piece) -> Planes:
    count, half = len(numbers), len(numbers) * (numbers.itemsize == 4)
    planes = Planes(np.zeros(count, np.uint8), np.zeros(count, np.uint8), np.zeros(half, np.uint16))
    splitter.split(numbers, piece, planes)
    return planes


LOADER: Final = Loader()
