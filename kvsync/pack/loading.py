"""When the compiled splitter is loaded: once a process has coded so much that loading it would have been repaid."""

from __future__ import annotations

import logging
import sys
import threading
from typing import Final

from kvsync.pack.splitter import Splitting
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
                    self._thread.start()
        return self._loaded

    def load(self) -> bool:
        """Load it now: half a second, a few more the first time on a machine. False where it cannot be had."""
        if sys.byteorder != "little":
            return False
        try:
            from kvsync.pack.compiled import CompiledSplitter
        except ImportError as error:
            log.debug("chunks are coded without numba: %s", error)
            return False
        except RuntimeError as error:  # numba has no place for the code
            log.warning("chunks are coded without numba: %s", error)
            return False
        self._loaded = CompiledSplitter()
        return True


LOADER: Final = Loader()
