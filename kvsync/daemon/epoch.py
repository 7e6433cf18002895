"""The number of this start of the daemon: larger than that of every start before, whatever the clock says."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from kvsync.errors import NotFoundError
from kvsync.files import read_limited, write_atomic
from kvsync_protocol.strictjson import MAX_SAFE_INTEGER

_MAX_BYTES: Final = 32


def next_epoch(path: Path) -> int:
    """Milliseconds since 1970, or one more than last time; kept at `path` before it is used.

    A damaged file counts as none: a registry that has heard a later epoch says so.

    Raises:
        StoreError: `store.full`, `store.unwritable`.
    """
    try:
        text = read_limited(path, _MAX_BYTES, what="the epoch").decode("ascii", "replace").strip()
    except NotFoundError:
        text = ""
    last = int(text) if text.isascii() and text.isdigit() else 0
    epoch = min(max(last + 1, time.time_ns() // 1_000_000, 1), MAX_SAFE_INTEGER)
    write_atomic(path, str(epoch).encode())
    return epoch
