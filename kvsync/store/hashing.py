"""Re-hashing stored chunks on several threads. Knows files and digests only."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kvsync.errors import NotFoundError, StoreError
from kvsync.progress import Progress
from kvsync.store.chunks import ChunkFiles
from kvsync_protocol.digest import Digest
from kvsync_protocol.limits import MiB

STAGE: Final = "checking"
_PIECE: Final = 1 * MiB
_BATCH: Final = 8
"""Chunks per task: enough to be worth a hand-over, few enough to share the work evenly."""


def bad_chunks(chunks: ChunkFiles, present: Mapping[Digest, int], progress: Progress) -> dict[Digest, str]:
    """Those of `present` (digest to size) whose bytes are not the named ones, with what is wrong."""
    total, done, lock = sum(present.values()), 0, threading.Lock()
    digests = list(present)

    def check(begin: int) -> dict[Digest, str]:
        nonlocal done
        found = {}
        for digest in digests[begin : begin + _BATCH]:
            wrong = problem(chunks, digest)
            if wrong is not None:
                found[digest] = wrong
            with lock:
                done += present[digest]
                progress(STAGE, done, total, "bytes")
        return found

    progress(STAGE, 0, total, "bytes")
    bad: dict[Digest, str] = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for found in pool.map(check, range(0, len(digests), _BATCH)):
            bad |= found
    return bad


def problem(chunks: ChunkFiles, digest: Digest) -> str | None:
    """What is wrong with a chunk file; None when it is sound or gone."""
    try:
        descriptor = chunks.open(digest)
    except NotFoundError:
        return None
    except StoreError as error:
        return error.message
    try:
        found = file_digest(descriptor)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)
    return None if found == digest else f"its bytes have the digest {found}"


def file_digest(descriptor: int) -> Digest:
    """SHA-256 of a file from its current position, in pieces of 1 MiB."""
    state, buffer = hashlib.sha256(), bytearray(_PIECE)
    view = memoryview(buffer)
    while count := os.readv(descriptor, [buffer]):
        state.update(view[:count])
    return Digest(state.digest())
