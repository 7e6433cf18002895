"""Logging for the daemon and its workers; library code only ever calls `logging.getLogger`."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send records of level and above to `stream` (stderr); called by programs, never by the library."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    for name in ("kvsync", "kvsync_registry"):
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.setLevel(level)
        root.propagate = False
