"""Small facts that are dear to compute, kept per key in the cache directory; losing one only costs time.

An entry holds its whole key, so a file can never answer for another question than its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from kvsync.engines.cachedir import cache_dir
from kvsync.errors import KvsyncError
from kvsync.files import make_private_dir, read_limited, write_atomic
from kvsync_protocol import strictjson
from kvsync_protocol.digest import Digest, hash_record
from kvsync_protocol.errors import MalformedError
from kvsync_protocol.limits import KiB

MAX_ENTRY_BYTES: Final = 512 * KiB
logger = logging.getLogger(__name__)


class DigestMemo:
    """Digests by key, one private file each, in `<cache>/<family>/`."""

    def __init__(self, family: str) -> None:
        self._family = family

    def get(self, key: Mapping[str, str]) -> Digest | None:
        """The digest stored for exactly this key; None when there is none, or no readable one."""
        try:
            path = make_private_dir(cache_dir() / self._family) / _file_name(key)
            found = strictjson.loads(
                read_limited(path, MAX_ENTRY_BYTES, what="the cache entry"),
                limit=MAX_ENTRY_BYTES,
                what="a cache entry",
            )
            if found.get("key") != dict(key):
                return None
            return Digest.parse(found.get("digest"))
        except (KvsyncError, MalformedError) as error:
            logger.debug("no cached %s: %s", self._family, error)
            return None

    def put(self, key: Mapping[str, str], digest: Digest) -> None:
        """Keep `digest` for this key; a cache that cannot be written only costs time."""
        try:
            path = make_private_dir(cache_dir() / self._family) / _file_name(key)
            write_atomic(path, strictjson.dumps({"digest": str(digest), "key": dict(key)}))
        except KvsyncError as error:
            logger.warning("the cache of %s cannot be written: %s", self._family, error)


def _file_name(key: Mapping[str, str]) -> str:
    items = [part.encode() for name in sorted(key) for part in (name, key[name])]
    return f"{hash_record('kvsync/memo/1', items).hex}.json"
