"""The artifacts/ folder: a few small files per artifact, published by rename.

    artifacts/<64 hex>/envelope.json   the signed manifest, signatures merged from all signers
                       leaves          the leaf table; its mtime is when the artifact was published
                       tokens          token ids; its mtime is when the artifact was last used
                       extent          which part of it is kept here (extent.py); absent when all of it is
                       cost            how long computing it took here (worth.py); absent where it was not computed
                       attestations/   what auditors have signed about it (attestations.py); may be absent

Whether anybody here trusts a signature is not asked: that is the reader's policy. Knows no chunks.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.store import locks
from kvsync.store.extent import MAX_EXTENT_BYTES, Extent
from kvsync.store.folder import Folder
from kvsync.store.stored import ATTESTATIONS, COST, ENVELOPE, EXTENT, LEAVES, TOKENS, StoredArtifact
from kvsync.store.temp import TempFiles
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import IntegrityError, ProtocolError
from kvsync_protocol.layout import Layout
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.limits import MAX_ENVELOPE_BYTES
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.signing import PublicKey

_OWN: Final = (ENVELOPE, LEAVES, TOKENS, EXTENT, COST)


class ArtifactFiles:
    """The artifacts/ folder. Thread-safe: it holds no state; writes happen under the index's transaction."""

    def __init__(self, folder: Folder, temp: TempFiles) -> None:
        self._folder = folder
        self._temp = temp

    def ids(self) -> list[ArtifactId]:
        """Every artifact folder here, sound or not."""
        return [ArtifactId(digest) for digest in self._folder.digests()]

    def has(self, artifact: ArtifactId) -> bool:
        return self._folder.status(artifact.hex) is not None

    def open(self, artifact: ArtifactId) -> Folder:
        """The artifact's folder. Raises NotFoundError `store.unknown_artifact`."""
        try:
            return self._folder.child(artifact.hex)
        except NotFoundError as error:
            raise unknown(artifact) from error

    def lock(self, artifact: ArtifactId, *, shared: bool) -> Folder | None:
        """The artifact's folder, locked until it is closed; exclusively only if nobody holds it, else None.

        Raises:
            NotFoundError: `store.unknown_artifact`.
        """
        folder = self.open(artifact)
        try:
            if shared:
                locks.wait(folder.fd, None, f"artifact {artifact.short}", shared=True)
            elif not locks.attempt(folder.fd):
                folder.close()
                return None
            if not self._folder.holds(artifact.hex, folder.fd):
                raise unknown(artifact)  # removed while we waited
        except BaseException:
            folder.close()
            raise
        return folder

    def read(self, artifact: ArtifactId, name: str, limit: int) -> bytes:
        """One of its files.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            IntegrityError: `integrity.artifact` when the file itself is missing.
        """
        with self.open(artifact) as folder:
            try:
                return folder.read(name, limit)
            except NotFoundError as error:
                if not self.has(artifact):
                    raise unknown(artifact) from error
                raise IntegrityError(
                    "integrity.artifact", f"artifact {artifact.short} lacks its {name}", hint="kvsync fsck"
                ) from error

    def load(self, artifact: ArtifactId, *, pinned: bool) -> StoredArtifact:
        """Read and parse the envelope.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            IntegrityError: `integrity.artifact` when what is stored is not this artifact.
            ProtocolError: as `Envelope.parse` and `Manifest.parse`, for damaged files.
        """
        envelope = Envelope.parse(self.read(artifact, ENVELOPE, MAX_ENVELOPE_BYTES))
        check_id(envelope, artifact)
        manifest = unjudged(envelope)
        with self.open(artifact) as folder:
            leaves, tokens = folder.status(LEAVES), folder.status(TOKENS)
        extent = self.extent(artifact, manifest.layout)
        return StoredArtifact(
            artifact,
            manifest,
            envelope,
            manifest.tree.total_bytes if extent is None else extent.bytes,
            leaves.st_mtime if leaves else 0.0,
            tokens.st_mtime if tokens else 0.0,
            pinned,
            extent,
            self,
        )

    def extent(self, artifact: ArtifactId, layout: Layout) -> Extent | None:
        """Which part is kept here; None for all of it. Raises MalformedError `json.*`, `extent.*`."""
        data = self.extent_bytes(artifact)
        return None if data is None else Extent.parse(data, layout)

    def extent_bytes(self, artifact: ArtifactId) -> bytes | None:
        """The file that says so, unread by parsers; None without one, also when the artifact is gone."""
        if self._folder.status(f"{artifact.hex}/{EXTENT}") is None:
            return None
        try:
            with self.open(artifact) as folder:
                return folder.read(EXTENT, MAX_EXTENT_BYTES)
        except NotFoundError:
            return None  # completed or removed meanwhile

    def set_extent(self, artifact: ArtifactId, extent: Extent | None) -> None:
        """Say which part is kept, in one step; its chunks are durable already."""
        with self.open(artifact) as folder:
            write_extent(self._temp, folder, extent)
            folder.sync()
        os.utime(self._folder.fd)  # a sign for whoever watches the folder of all artifacts

    def verify(self, artifact: ArtifactId) -> tuple[StoredArtifact, LeafTable, tuple[int, ...]]:
        """Everything about an artifact except its chunks, checked. Raises as `load`, `leaves`, `tokens`."""
        stored = self.load(artifact, pinned=False)
        return stored, stored.leaves(), stored.tokens()

    def is_sound(self, artifact: ArtifactId) -> bool:
        """True when it is here and its files are what they must be."""
        try:
            self.verify(artifact)
        except NotFoundError:
            return False
        except (ProtocolError, StoreError) as error:
            if not is_damage(error):
                raise
            return False
        return True

    def meta_bytes(self, artifact: ArtifactId) -> int:
        """Bytes of its own files and of the attestations; 0 when they are gone."""
        try:
            with self.open(artifact) as folder:
                found = sum(s.st_size for name in _OWN if (s := folder.status(name)))
                if folder.status(ATTESTATIONS) is None:
                    return found
                with folder.child(ATTESTATIONS) as inner:
                    return found + sum(s.st_size for name in inner.names() if (s := inner.status(name)))
        except NotFoundError:
            return 0

    def adopt(self, source: Folder, artifact: ArtifactId) -> None:
        """Publish a complete folder of `source` that bears the artifact's name."""
        source.move(artifact.hex, self._folder, artifact.hex)
        self._folder.sync()
        source.sync()

    def merge(self, envelope: Envelope, keys: Collection[PublicKey] = ()) -> Envelope:
        """Add signatures, which somebody has judged, to a stored envelope; those of `keys` are never crowded out.

        Raises:
            NotFoundError: `store.unknown_artifact`.
        """
        artifact = ArtifactId(sha256(envelope.payload))
        held = Envelope.parse(self.read(artifact, ENVELOPE, MAX_ENVELOPE_BYTES))
        if (held.payload_type, held.payload) != (envelope.payload_type, envelope.payload):
            raise UsageError("store.envelope", "the envelope is of another payload than the stored one")
        merged = held.merged(envelope, keys)
        if merged != held:
            with self.open(artifact) as folder:
                self._temp.publish(merged.encode(), folder, ENVELOPE)
                folder.sync()
        return merged

    def touch(self, artifact: ArtifactId) -> None:
        """Record a use, now."""
        with self.open(artifact) as folder:
            try:
                os.utime(TOKENS, dir_fd=folder.fd, follow_symlinks=False)
            except FileNotFoundError as error:
                raise unknown(artifact) from error

    def last_used(self, artifact: ArtifactId) -> int:
        """Nanoseconds of the epoch; 0 when it is gone."""
        return self._time(artifact, TOKENS)

    def created(self, artifact: ArtifactId) -> int:
        """When it was published, nanoseconds of the epoch; 0 when it is gone."""
        return self._time(artifact, LEAVES)

    def _time(self, artifact: ArtifactId, name: str) -> int:
        try:
            with self.open(artifact) as folder:
                status = folder.status(name)
        except (NotFoundError, StoreError):
            return 0
        return status.st_mtime_ns if status else 0

    def discard(self, artifact: ArtifactId) -> None:
        """Remove its folder; chunks are left to gc."""
        self._temp.discard_tree(artifact.hex, self._folder)

    def move_to(self, quarantine: Folder, artifact: ArtifactId, name: str) -> None:
        """Take a damaged artifact out of service."""
        self._folder.move(artifact.hex, quarantine, name)


def write_extent(temp: TempFiles, folder: Folder, extent: Extent | None) -> None:
    """Say in an artifact's folder which part of it is kept there."""
    if extent is None:
        folder.unlink(EXTENT)
    else:
        temp.publish(extent.encode(), folder, EXTENT)


def check_id(envelope: Envelope, artifact: ArtifactId) -> None:
    """What is kept under an id has to be what it names. Raises IntegrityError `integrity.artifact`."""
    if sha256(envelope.payload) != artifact:
        raise IntegrityError(
            "integrity.artifact", f"the manifest stored as {artifact.short} is another one", hint="kvsync fsck"
        )


def unjudged(envelope: Envelope) -> Manifest:
    """The manifest inside an envelope whose signatures are somebody else's question.

    Raises:
        ProtocolError: as `Manifest.parse`.
    """
    return Manifest.parse(VerifiedPayload(envelope.payload_type, envelope.payload, ()))


def unknown(artifact: ArtifactId) -> NotFoundError:
    return NotFoundError(
        "store.unknown_artifact", f"artifact {artifact.short} is not here", hint="kvsync ls", artifact=artifact
    )


def is_damage(error: Exception) -> bool:
    """True for errors that say the files themselves are bad, not that they are absent or unreadable now."""
    return isinstance(error, ProtocolError) or (isinstance(error, StoreError) and error.code in _DAMAGE)


_DAMAGE: Final = ("store.file_too_large", "store.symlink", "store.foreign", "store.lax_mode")
