"""The blame records of this node, one signed file for each peer, leaf and wrong content; the newest are kept.

A record is written while a transfer goes on, so one that cannot be written is no reason to end that.
"""

from __future__ import annotations

import logging
import time
from typing import Final

from kvsync.config import Home
from kvsync.errors import NotFoundError, StoreError
from kvsync.files import exclusive, make_private_dir, read_limited, write_atomic
from kvsync_protocol.blame import Blame
from kvsync_protocol.digest import ArtifactId, Digest, hash_record
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import MAX_ENVELOPE_BYTES
from kvsync_protocol.signing import PublicKey, SigningKey

MAX_RECORDS: Final = 1000
"""Of all peers together."""

log = logging.getLogger(__name__)


class BlameBook:
    """Those of one home. Safe for several threads and processes."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.blame_dir

    def note(
        self, signer: SigningKey, peer: PublicKey, artifact: ArtifactId, leaf: int, error: CodedError
    ) -> Blame | None:
        """Keep what came wrong; None when that is not possible now."""
        found = error.fields.get("found")
        blame = Blame(
            peer, artifact, leaf, error.code, found if isinstance(found, Digest) else None, max(0, int(time.time()))
        )
        try:
            make_private_dir(self._folder)
            write_atomic(self._folder / _name(blame), blame.seal(signer).encode())
            self._make_room()
        except StoreError as failure:
            log.warning("the blame of %s could not be kept: %s (%s)", peer.key_id, failure, failure.code)
            return None
        return blame

    def records(self, signers: frozenset[PublicKey]) -> list[Blame]:
        """Those that one of this node's own keys has signed, newest first; strange files are passed over."""
        found = []
        for path in self._folder.glob("*.json"):
            try:
                data = read_limited(path, MAX_ENVELOPE_BYTES, what="a blame record")
                blame = Blame.open(Envelope.parse(data), signers)
            except NotFoundError:
                continue  # made room for a newer one meanwhile
            except CodedError as error:
                log.warning("%s is no blame record of this node: %s", path.name, error)
                continue
            found.append(blame)
        return sorted(found, key=lambda blame: (-blame.time, str(blame.peer), blame.leaf))

    def _make_room(self) -> None:
        if sum(1 for _ in self._folder.glob("*.json")) <= MAX_RECORDS:
            return
        with exclusive(self._home.lock_file):
            aged = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
            for path in aged[:-MAX_RECORDS]:
                path.unlink(missing_ok=True)


def _name(blame: Blame) -> str:
    """The same for the same fault, whenever: a peer that repeats it fills no folder."""
    found = b"" if blame.found is None else blame.found.raw
    parts = [blame.peer.raw, blame.artifact.raw, blame.leaf.to_bytes(8), blame.code.encode(), found]
    return f"{hash_record('kvsync/blame/1', parts).hex}.json"
