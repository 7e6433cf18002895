"""Reading a stored artifact back in full: everything its signature promises, checked against the disk.

Changes nothing. What is damaged is counted to the end, so that one run tells how much has to be fetched.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from kvsync.errors import NotFoundError
from kvsync.progress import Progress, silent
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.leaves import Leaf
from kvsync_protocol.limits import MiB
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest
from kvsync_protocol.signing import PublicKey

if TYPE_CHECKING:
    from kvsync.store import Store, StoredArtifact

MAX_NAMED = 16
_PIECE = 1 * MiB


def verify_artifact(
    store: Store, stored: StoredArtifact, trusted: Collection[PublicKey], progress: Progress = silent
) -> tuple[str, ...]:
    """Check signature, id, leaf table, token ids and every chunk kept here; return the names of the checks.

    Raises:
        TrustError: `trust.untrusted_signer`.
        IntegrityError: `integrity.artifact`, `integrity.leaf_table`, `integrity.root`, `integrity.tokens`,
            `integrity.chunk` with the number of damaged or missing chunks and the first of their digests.
    """
    manifest = Manifest.parse(stored.envelope.verify(PAYLOAD_TYPE, trusted))
    if manifest.artifact != stored.artifact:
        raise IntegrityError("integrity.artifact", "the stored manifest is another artifact's")
    table = stored.leaves()
    stored.tokens()
    damaged = []
    kept = table.leaves
    if stored.extent is not None:
        kept = tuple(table.leaves[span.index] for span in stored.extent.spans())
    done, total = 0, stored.bytes
    for leaf in kept:
        if not _sound(store, leaf):
            damaged.append(leaf)
        done += leaf.size
        progress("verify", done, total, "bytes")
    if damaged:
        raise IntegrityError(
            "integrity.chunk",
            f"{len(damaged)} of {len(kept)} chunks are damaged or missing",
            hint="kvsync fsck --repair --from PEER",
            damaged=len(damaged),
            chunks=[str(leaf.digest) for leaf in damaged[:MAX_NAMED]],
        )
    return (
        "signature",
        "artifact id",
        "leaf table and merkle root",
        "token ids",
        f"every chunk ({len(kept)})" if stored.extent is None else f"every chunk kept ({len(kept)})",
    )


def _sound(store: Store, leaf: Leaf) -> bool:
    """True when the chunk's file has exactly the bytes its digest names."""
    try:
        descriptor = store.open_chunk(leaf.digest)
    except NotFoundError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        state, count = hashlib.sha256(), 0
        while piece := file.read(_PIECE):
            count += len(piece)
            if count > leaf.size:
                return False
            state.update(piece)
    return count == leaf.size and state.digest() == leaf.digest.raw
