"""Where derived data lives that can be made again: models, weight digests, canaries. Knows nothing of homes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import platformdirs

from kvsync.errors import UsageError

CACHE_VARIABLE: Final = "KVSYNC_CACHE"


def cache_dir() -> Path:
    """$KVSYNC_CACHE, else the user's cache directory. Not created.

    Raises:
        UsageError: `cache.variable` when the variable is set but empty.
    """
    if CACHE_VARIABLE in os.environ:
        value = os.environ[CACHE_VARIABLE]
        if not value:
            raise UsageError(
                "cache.variable", f"{CACHE_VARIABLE} is set but empty", hint="unset it or name a directory"
            )
        return Path(value).expanduser().absolute()
    return Path(platformdirs.user_cache_dir("kvsync", appauthor=False))
