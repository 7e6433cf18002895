"""Chunk files with wrong bytes, moved to where nothing serves them. Knows not who found them."""

from __future__ import annotations

from collections.abc import Iterable

from kvsync.store.hashing import problem
from kvsync.store.parts import Parts
from kvsync_protocol.digest import Digest


def set_aside_chunks(parts: Parts, suspects: Iterable[Digest]) -> dict[Digest, str]:
    """Hash the suspects again and move those that are bad to quarantine; they, with what is wrong.

    A chunk set aside is a chunk that is not here: the next pull or computation that needs it brings it anew.
    """
    bad: dict[Digest, str] = {}
    with parts.index.writing() as db:
        for digest in suspects:
            wrong = problem(parts.chunks, digest)  # a transfer may have replaced it since
            if wrong is not None:
                bad[digest] = wrong
                parts.chunks.move_to(parts.folder("quarantine"), digest)
                db.execute("DELETE FROM chunks WHERE digest = ?", (digest.raw,))
    return bad
