"""`StoredArtifact`: one published artifact as its folder describes it, and the names of the files there.

Whether anybody here trusts a signature is not asked. Knows how to ask for a file, not where it lies.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kvsync.store.extent import Extent
from kvsync_protocol.digest import ArtifactId
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.limits import MAX_LEAF_TABLE_BYTES, MAX_TOKEN_BYTES
from kvsync_protocol.manifest import Manifest

if TYPE_CHECKING:
    from kvsync.store.artifacts import ArtifactFiles

ENVELOPE: Final = "envelope.json"
LEAVES: Final = "leaves"
TOKENS: Final = "tokens"
EXTENT: Final = "extent"
COST: Final = "cost"
ATTESTATIONS: Final = "attestations"


@dataclass(frozen=True)
class StoredArtifact:
    """A published artifact. `manifest` is parsed from `envelope`, whose signatures nobody has judged.

    `extent` says which part of its chunks is kept here, None for all of them; `bytes` are those of that part, some
    of which other artifacts may share. Times are seconds of the epoch.
    """

    artifact: ArtifactId
    manifest: Manifest = field(repr=False)
    envelope: Envelope = field(repr=False)
    bytes: int
    created: float
    last_used: float
    pinned: bool
    extent: Extent | None
    files: ArtifactFiles = field(repr=False, compare=False)

    def covers(self, position: int) -> bool:
        """Whether what a graft at `position` needs is kept here; at the artifact's end that includes the logits."""
        return position > 0 and self.restorable(position) == position

    def restorable(self, position: int) -> int:
        """The last place at or before `position` at which a graft can begin with what is kept here, or 0."""
        return (self.extent or self.manifest.layout).restorable(position)

    def leaves(self) -> LeafTable:
        """Read the leaf table and check it against the manifest.

        Raises:
            NotFoundError: `store.unknown_artifact` when it was removed meanwhile.
            IntegrityError: `integrity.leaf_table`, `integrity.root`, `leaves.layout`.
        """
        return self.manifest.check_leaves(self.files.read(self.artifact, LEAVES, MAX_LEAF_TABLE_BYTES))

    def tokens(self) -> tuple[int, ...]:
        """Read the token ids and check them. Raises as `leaves`; IntegrityError `integrity.tokens`."""
        return self.manifest.check_tokens(self.files.read(self.artifact, TOKENS, MAX_TOKEN_BYTES))
