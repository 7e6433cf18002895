"""List files of a home: `{"version", "entries": [...]}`, read strictly and replaced as a whole.

Knows nothing of what an entry means. A list of an earlier version is read as it is and written anew by the
next change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.files import read_limited, write_atomic
from kvsync_protocol import strictjson
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_LIST_ENTRIES, MiB

T = TypeVar("T")

LIST_VERSION: Final = 2
MAX_LIST_BYTES: Final = 16 * MiB
"""More than 1,000 peers of 16 long addresses each."""


def load_list(path: Path, family: str, read: Callable[[strictjson.Fields, int], T]) -> list[T]:
    """The entries of a list file; none when there is no file. `read` is given an entry and the file's version.

    Raises:
        StoreError: `<family>.damaged`.
    """
    try:
        data = read_limited(path, MAX_LIST_BYTES, what="the list")
    except NotFoundError:
        return []
    try:
        top = strictjson.Fields(strictjson.loads(data, limit=MAX_LIST_BYTES, what=path.name), family)
        version = top.integer("version", 1, LIST_VERSION)
        found = []
        for value in top.array("entries", limit=MAX_LIST_ENTRIES):
            entry = strictjson.Fields(value, family)
            found.append(read(entry, version))
            entry.done()
        top.done()
    except (ProtocolError, UsageError) as error:
        raise StoreError(
            f"{family}.damaged", f"{path} is damaged: {error.message}", hint="restore or remove it"
        ) from error
    return found


def save_list(path: Path, family: str, entries: Sequence[Mapping[str, object]]) -> None:
    """Replace the file, unless the reader would refuse it. Raises UsageError `<family>.full`."""
    data = strictjson.dumps({"version": LIST_VERSION, "entries": entries})
    if len(entries) > MAX_LIST_ENTRIES or len(data) > MAX_LIST_BYTES:
        raise UsageError(f"{family}.full", f"{path.name} takes at most {MAX_LIST_ENTRIES} entries")
    write_atomic(path, data)
