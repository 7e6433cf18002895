"""`Journal`: the records of a run that is under way, so that a killed one goes on where it was.

The first line names the run, each other holds one record. A last line without its end is cut off.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from kvsync.errors import StoreError, UsageError
from kvsync.files import write_atomic, write_error
from kvsync_protocol import strictjson
from kvsync_protocol.errors import ProtocolError
from kvsync_protocol.limits import MAX_MANIFEST_BYTES, MAX_RECORD_BYTES
from kvsync_protocol.trial import Asked


class Journal:
    """`records` are those of this run that were there already, and all that are added."""

    def __init__(self, path: Path, run: Mapping[str, object]) -> None:
        """Raises UsageError `eval.other_run`; StoreError `eval.damaged`, `store.full`."""
        self._path = path
        self.records: list[Asked] = []
        head = strictjson.dumps(run)
        if not path.exists():
            write_atomic(path, head + b"\n")
            return
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        first, *lines = whole.split(b"\n")[:-1] or [b""]
        if first != head:
            raise UsageError(
                "eval.other_run",
                f"{path.parent} is left from a run with other settings",
                hint="remove that folder, or choose another --out",
            )
        try:
            strictjson.loads(first, limit=MAX_MANIFEST_BYTES, what="the journal")
            for line in lines:
                self.records.append(Asked.parse(strictjson.loads(line, limit=MAX_RECORD_BYTES, what="a record")))
        except ProtocolError as error:
            raise StoreError(
                "eval.damaged", f"{path} is damaged: {error.message}", hint="remove its folder"
            ) from error
        if len(whole) < len(data):
            os.truncate(path, len(whole))

    def add(self, record: Asked) -> None:
        """Raises StoreError `store.full`, with nothing added."""
        line = strictjson.dumps(record.as_json()) + b"\n"
        try:
            with self._path.open("ab", buffering=0) as file:
                end = os.fstat(file.fileno()).st_size
                if file.write(line) != len(line):
                    os.ftruncate(file.fileno(), end)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise write_error(error, self._path) from error
        self.records.append(record)
