"""`Store`: everything a node keeps, behind one object. The work is in the modules beside it.

Several processes and threads may use one store at once; an open `Store` must not be used after a fork.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from kvsync.progress import Progress, silent
from kvsync.store import garbage, leases, names, opening, quota, records
from kvsync.store.artifacts import unknown
from kvsync.store.computing import ComputeDraft
from kvsync.store.drafts import PullDraft
from kvsync.store.evidence import Evidence
from kvsync.store.fsck import FsckReport, RepairSource, check_store
from kvsync.store.garbage import GcReport
from kvsync.store.listing import Listed, list_artifacts
from kvsync.store.matching import Matching
from kvsync.store.parts import Parts
from kvsync.store.quarantine import set_aside_chunks
from kvsync.store.quota import StoreLimits, Usage
from kvsync.store.reconcile import rebuild, reconcile
from kvsync.store.refs import StoredRef
from kvsync.store.serving import Served, serve
from kvsync.store.stored import StoredArtifact
from kvsync_protocol.digest import ArtifactId, Digest, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.ref import Ref, check_name
from kvsync_protocol.signing import PublicKey


class Store(Matching):
    """An open store. Context manager; thread-safe."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.evidence = Evidence(parts)

    @classmethod
    def open(cls, root: Path, limits: StoreLimits = StoreLimits()) -> Store:  # noqa: B008  frozen
        """Open the store at `root`, made if absent. A lost, damaged or older index is rebuilt from the files.

        Raises:
            StoreError: `store.symlink`, `store.lax_mode`, `store.foreign`, `store.full`, `store.unwritable`;
                `store.index_damaged` or `store.index_version` when it must be rebuilt but others use it.
            VersionError: `version.index` when a newer version of kvsync wrote it.
            UnavailableError: `store.busy`.
        """
        return cls(opening.open_parts(root, limits))

    def close(self) -> None:
        """Close; drafts must be closed before."""
        self._parts.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # reading

    def artifacts(self) -> list[StoredArtifact]:
        """Complete artifacts, newest first; damaged ones are left to fsck."""
        with self._parts.index.reading() as db:
            ids = records.artifact_ids(db)
        return sorted(self._parts.sound(ids), key=lambda stored: stored.created, reverse=True)

    def kept(self) -> dict[ArtifactId, bool]:
        """Which artifacts are here, and whether all of each is; by the index alone, no file is read."""
        with self._parts.index.reading() as db:
            return records.kept(db)

    def listing(self, keys: Collection[PublicKey]) -> list[Listed]:
        """What a list shows of the same, and how many of `keys` have signed each; see `kvsync.store.listing`."""
        return list_artifacts(self._parts, keys)

    def artifact(self, artifact: ArtifactId) -> StoredArtifact:
        """One complete artifact.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            IntegrityError: `integrity.artifact` when its files are damaged; other ProtocolErrors likewise.
        """
        with self._parts.index.reading() as db:
            if not records.is_recorded(db, artifact):
                raise unknown(artifact)
        return self._parts.files.load(artifact, pinned=self._parts.is_pinned(artifact))

    def whole(self, artifact: ArtifactId) -> StoredArtifact | None:
        """An artifact with sound files and every chunk of its extent in full size, or None; no chunk is read.

        Whether the extent is all of the artifact, or enough, is the caller's to ask.
        """
        return self._parts.whole(artifact)

    def open_chunk(self, digest: Digest) -> int:
        """A descriptor for reading a chunk; the caller closes it, and checks what it reads.

        Raises:
            NotFoundError: `store.unknown_chunk`.
            StoreError: `store.symlink`, `store.foreign`, `store.unreadable`.
        """
        return self._parts.chunks.open(digest)

    def has_chunk(self, digest: Digest) -> bool:
        return self._parts.chunks.has(digest)

    def doubt_chunk(self, digest: Digest) -> bool:
        """Somebody has read other bytes than the digest's: hash it again, and set it aside if they are."""
        return bool(set_aside_chunks(self._parts, [digest]))

    @contextmanager
    def hold(self, artifact: ArtifactId) -> Iterator[StoredArtifact]:
        """Use an artifact: until the end, neither gc nor `remove` takes it away, and it counts as used now.

        The hold is an OS lock, so it ends with the process at the latest.

        Raises:
            NotFoundError: `store.unknown_artifact`.
        """
        folder = self._parts.files.lock(artifact, shared=True)
        try:
            self.touch(artifact)
            yield self.artifact(artifact)
        finally:
            if folder is not None:
                folder.close()

    def serve(self, artifact: ArtifactId) -> AbstractContextManager[Served]:
        """Give others of an artifact what is here of it, stored or still arriving; meanwhile as under `hold`.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            IntegrityError: as `artifact`.
        """
        return serve(self._parts, artifact)

    def touch(self, artifact: ArtifactId) -> None:
        """Record a use, for eviction. Raises NotFoundError `store.unknown_artifact`."""
        self._parts.files.touch(artifact)

    # writing

    def pull_draft(
        self,
        envelope: Envelope,
        manifest: Manifest,
        leaves: bytes,
        tokens: bytes,
        *,
        positions: Collection[int] | None = None,
        deadline: float | None = None,
    ) -> PullDraft:
        """Begin or resume an artifact whose signatures the caller has judged.

        With `positions`, only what grafts there need is missing, reserved and published: each one that
        `Layout.restorable` gives. What is here already stays, so that parts of an artifact add up.

        Waits while another draft of the same artifact is open, in any process, until `deadline` (a
        `time.monotonic()` value). Raises as `PullDraft`.
        """
        return PullDraft(self._parts, envelope, manifest, leaves, tokens, positions, deadline)

    def compute_draft(self, plan: Digest, *, expected_bytes: int = 0, deadline: float | None = None) -> ComputeDraft:
        """Begin or resume a computation; `plan` names what is computed under which fingerprints.

        `expected_bytes` is reserved under the quotas and the floor. Raises as `ComputeDraft`.
        """
        return ComputeDraft(self._parts, plan, expected_bytes, deadline)

    def add_signatures(self, envelope: Envelope, keys: Collection[PublicKey]) -> None:
        """Merge the valid signatures of `keys`, and no others, into a stored envelope.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            TrustError: `trust.untrusted_signer` when none of `keys` has signed.
        """
        artifact, judged = ArtifactId(sha256(envelope.payload)), envelope.endorsed(keys)
        with self._parts.index.writing() as db:
            self._parts.files.merge(judged, keys)
            records.set_meta_bytes(db, artifact, self._parts.files.meta_bytes(artifact))

    def attestations(self, artifact: ArtifactId) -> list[Envelope]:
        """What auditors have signed about it, nobody's word judged. Raises NotFoundError `store.unknown_artifact`."""
        return self.evidence.attestations(artifact)

    def add_attestation(self, envelope: Envelope, keys: Collection[PublicKey]) -> bool:
        """Keep an attestation with its signatures by `keys`. Raises as `Evidence.add_attestation`."""
        return self.evidence.add_attestation(envelope, keys)

    # names, pins, removal

    def set_ref(self, ref: Ref, envelope: Envelope, *signers: PublicKey, owners: Collection[PublicKey] = ()) -> None:
        """Let a name stand for an artifact, here or not.

        What one of `owners` (the trusted keys, where a peer brings the ref) has named is not moved by others.

        Raises:
            TrustError: `trust.untrusted_signer` unless all `signers` signed this very ref in `envelope`;
                `trust.rollback` for a sequence below the last one seen of any of them, or equal to it for
                another artifact; `trust.ref_owner`.
        """
        with self._parts.index.writing():
            self._parts.refs.set(ref, envelope, signers, owners)

    def check_ref(self, ref: Ref, signers: Collection[PublicKey], owners: Collection[PublicKey] = ()) -> None:
        """Raises what `set_ref` would, the signatures aside."""
        self._parts.refs.check(ref, signers, owners)

    def remove_ref(self, name: str) -> None:
        """Forget what a name stands for, but not its sequences. Raises NotFoundError `store.unknown_name`."""
        with self._parts.index.writing():
            self._parts.refs.remove(name)

    def refs(self) -> list[StoredRef]:
        """All refs by name. Raises StoreError `store.ref_damaged`."""
        return self._parts.refs.refs()

    def ref_sequence(self, name: str, signer: PublicKey) -> int:
        """The highest sequence seen of a signer for a name, 0 for none; the next one is one higher."""
        return self._parts.refs.sequence(check_name(name), signer)

    def resolve(self, name_or_id: str) -> ArtifactId:
        """What a user means: a full id of an artifact here, else a name, else the first 8+ digits of an id.

        What a name stands for need not be here.

        Raises:
            NotFoundError: `store.unknown_artifact`, `store.unknown_name`.
            TrustError: `trust.expired` for a name past its expiry.
            UsageError: `store.ambiguous` when these digits begin several artifacts, or one and are another's name.
        """
        return names.resolve(self._parts, name_or_id)

    def pin(self, artifact: ArtifactId) -> None:
        """Keep an artifact whatever the quota says. Raises NotFoundError `store.unknown_artifact`."""
        with self._parts.index.writing() as db:
            if not records.is_recorded(db, artifact):
                raise unknown(artifact)
            pins = self._parts.folder("pins")
            self._parts.temp.publish(b"", pins, artifact.hex)
            pins.sync()

    def unpin(self, artifact: ArtifactId) -> None:
        """Undo `pin`; nothing when it was not pinned."""
        with self._parts.index.writing():
            self._parts.folder("pins").unlink(artifact.hex)

    def remove(self, artifact: ArtifactId) -> None:
        """Remove an artifact; its chunks stay until gc finds nobody needs them.

        Raises:
            NotFoundError: `store.unknown_artifact`.
            StoreError: `store.pinned`, `store.in_use`.
        """
        garbage.remove(self._parts, artifact)

    # upkeep

    def gc(self, *, dry_run: bool = False) -> GcReport:
        """Remove what nobody needs; over quota also evict, least worth first (worth.py).

        Evictable are artifacts without a pin, a ref and a `hold`. A dry run changes nothing and reports
        the numbers that a run would.

        Raises:
            UnavailableError: `store.busy`.
            StoreError: `store.ref_damaged` when eviction is needed but a ref cannot be read.
        """
        return garbage.collect(self._parts, dry_run=dry_run)

    def fsck(self, *, repair: RepairSource | None = None, progress: Progress = silent) -> FsckReport:
        """Check every byte of the store against its digest; with `repair`, fetch what is bad or missing."""
        return check_store(self._parts, repair, progress)

    def rebuild_index(self) -> None:
        """Make the index anew from the files, in one transaction."""
        with self._parts.spending_reserve(), self._parts.index.writing() as db:
            rebuild(db, self._parts)

    def usage(self) -> Usage:
        """What is here, what is reserved, what the limits are."""
        with self._parts.index.reading() as db:
            if not leases.any_unsettled(db):
                return quota.usage(db, self._parts.root, self._parts.limits)
        with self._parts.index.writing() as db:
            reconcile(db, self._parts)  # a draft whose process ended reserves nothing
            return quota.usage(db, self._parts.root, self._parts.limits)
