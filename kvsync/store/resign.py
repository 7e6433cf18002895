"""Signing anew what an earlier key of this node has signed, so that it counts after the earlier key does not.

Adds signatures and changes nothing else; may be stopped at any moment and run again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from kvsync.progress import Progress, silent
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.signing import PublicKey, SigningKey

if TYPE_CHECKING:
    from kvsync.store.store import Store


def resign(
    store: Store,
    keys: Sequence[SigningKey],
    trusted: Collection[PublicKey],
    progress: Progress = silent,
) -> tuple[int, int]:
    """Let the last of `keys` sign whatever the others have; returns how many artifacts and names it signed.

    Raises:
        StoreError: `store.full`, `store.unwritable`.
    """
    *old, new = keys
    before = [key.public for key in old]
    counting = {*trusted, new.public}
    artifacts, names = 0, 0
    stored = [each for each in store.artifacts() if each.envelope.signers(before)]
    for number, each in enumerate(stored):
        progress("sign", number, len(stored), "artifacts")
        if not each.envelope.signers([new.public]):
            added = Envelope.seal(each.envelope.payload_type, each.envelope.payload, new)
            store.add_signatures(added, counting)
            artifacts += 1
    for ref in store.refs():
        signed = ref.envelope.signers([*before, new.public])
        if not signed or new.public in signed:
            continue
        keys_of_ref = [key for key in keys if key.public in {*signed, new.public}]
        store.set_ref(
            ref.ref,
            Envelope.seal(ref.envelope.payload_type, ref.envelope.payload, *keys_of_ref),
            *(key.public for key in keys_of_ref),
        )
        names += 1
    return artifacts, names
