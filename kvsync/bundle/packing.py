"""Pack artifacts that are here into one signed file, which has its name only when it is whole.

hold every artifact ─► index, signed ─► envelopes, tables, token ids ─► each chunk once, hashed ─► fsync, rename
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.bundle.contents import BundledChunk, Contents, bundled_chunks
from kvsync.bundle.members import MemberWriter
from kvsync.bundle.report import BundleReport, Moved
from kvsync.errors import UsageError
from kvsync.files import replacing
from kvsync.keys import NodeKeys
from kvsync.pack.codec import Codec
from kvsync.pack.shape import leaf_shape
from kvsync.peer.chunk_file import ChunkFile
from kvsync.peer.stream import buffer
from kvsync.progress import Progress, silent
from kvsync.store import Store, StoredArtifact, StoredRef
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.bundle import (
    INDEX_NAME,
    MAX_BUNDLE_ARTIFACTS,
    MAX_BUNDLE_POSITIONS,
    MAX_BUNDLE_REFS,
    BundledArtifact,
    BundleIndex,
    artifact_member,
    chunk_name,
    small_members,
)
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.limits import MAX_CHUNK_BYTES
from kvsync_protocol.prefix import encode_tokens

ENCODINGS: Final = {
    "identity": Encoding.IDENTITY,
    "zstd": Encoding.ZSTD,
    "planes": Encoding.PLANES,
    "auto": Encoding.PLANES,  # the smallest: a bundle is carried by hand
}


@dataclass(frozen=True)
class _Packed:
    """One artifact to be packed, with all that is small of it."""

    stored: StoredArtifact
    contents: Contents
    envelope: bytes
    attestations: tuple[bytes, ...]
    refs: tuple[StoredRef, ...]

    @property
    def entry(self) -> BundledArtifact:
        extent = self.stored.extent
        return BundledArtifact(
            self.stored.artifact,
            sha256(self.envelope),
            None if extent is None else extent.positions,
            tuple(map(sha256, self.attestations)),
            tuple(sha256(ref.envelope.encode()) for ref in self.refs),
        )

    @property
    def small(self) -> Iterator[bytes]:
        """In the order of `small_members`."""
        yield from self.attestations
        yield from (ref.envelope.encode() for ref in self.refs)

    @property
    def moved(self) -> Moved:
        contents = self.contents
        return Moved(
            artifact=self.stored.artifact,
            names=tuple(ref.name for ref in self.refs),
            positions=None if self.stored.extent is None else self.stored.extent.positions,
            chunks=sum(1 for _ in contents.indices),
            bytes_total=contents.bytes,
        )


def export_bundle(
    store: Store,
    artifacts: Sequence[ArtifactId],
    path: Path,
    *,
    keys: NodeKeys,
    encoding: str = "identity",
    names: bool = True,
    progress: Progress = silent,
    dry_run: bool = False,
) -> BundleReport:
    """Pack `artifacts`, what is here of each, into a new file at `path`; with `names`, the refs to them too.

    A dry run writes nothing. The file is for this user alone, since a KV state can be turned back into its text.

    Raises:
        UsageError: `bundle.exists`, `bundle.too_many`, `bundle.nothing`.
        NotFoundError: `store.unknown_artifact`, `store.unknown_chunk`.
        IntegrityError: `integrity.*` for damaged files here; StoreError: `store.damaged_chunk` likewise.
        StoreError: `store.full`, `store.unwritable`; there is no file then.
    """
    began, wanted, own = time.monotonic(), sorted(set(artifacts)), keys.current()
    if not wanted:
        raise UsageError("bundle.nothing", "there is nothing to pack")
    if len(wanted) > MAX_BUNDLE_ARTIFACTS:
        raise too_many(f"a bundle holds up to {MAX_BUNDLE_ARTIFACTS} artifacts")
    if path.exists() or path.is_symlink():
        raise UsageError("bundle.exists", f"{path} is there already", hint="name another file, or remove it")
    with ExitStack() as held:
        packed = [_pack(store, held.enter_context(store.hold(artifact)), names=names) for artifact in wanted]
        chunks = list(bundled_chunks(each.contents for each in packed))
        size, written = sum(chunk.leaf.size for chunk in chunks), 0
        try:
            index = BundleIndex(tuple(each.entry for each in packed)).seal(own.signer, own.peer)
        except MalformedError as error:
            raise too_many("the index of these artifacts would be larger than any reader takes") from error
        if not dry_run:
            with replacing(path) as file:
                written = _write(
                    MemberWriter(file, path), store, packed, chunks, index, ENCODINGS[encoding], progress
                )
    return BundleReport(
        file=str(path),
        exporter=own.signer.public.key_id,
        dry_run=dry_run,
        artifacts=tuple(each.moved for each in packed),
        chunks_moved=len(chunks),
        bytes_moved=size,
        bytes_file=written,
        seconds=time.monotonic() - began,
    )


def too_many(message: str) -> UsageError:
    return UsageError("bundle.too_many", message, hint="make several bundles")


def _pack(store: Store, stored: StoredArtifact, *, names: bool) -> _Packed:
    now = time.time()
    refs = [ref for ref in store.refs() if ref.artifact == stored.artifact] if names else []
    kept = tuple(ref for ref in refs if ref.expires is None or now <= ref.expires)
    positions = () if stored.extent is None else stored.extent.positions
    if len(kept) > MAX_BUNDLE_REFS or len(positions) > MAX_BUNDLE_POSITIONS:
        raise too_many(f"artifact {stored.artifact.short} has more than {MAX_BUNDLE_REFS} names")
    attestations = tuple(envelope.encode() for envelope in store.attestations(stored.artifact))
    contents = Contents(stored.manifest.layout, stored.leaves(), stored.extent)
    return _Packed(stored, contents, stored.envelope.encode(), attestations, kept)


def _write(
    out: MemberWriter,
    store: Store,
    packed: Sequence[_Packed],
    chunks: Sequence[BundledChunk],
    index: Envelope,
    encoding: Encoding,
    progress: Progress,
) -> int:
    """Every member in its order; how many bytes the file has."""
    out.add(INDEX_NAME, index.encode())
    for number, each in enumerate(packed):
        out.add(artifact_member(number, "envelope.json"), each.envelope)
        out.add(artifact_member(number, "leaves"), each.contents.table.encode())
        out.add(artifact_member(number, "tokens"), encode_tokens(each.stored.tokens()))
        for (name, _), small in zip(small_members(number, each.entry), each.small, strict=True):
            out.add(name, small)
    codec, space = Codec(), buffer(MAX_CHUNK_BYTES)
    total, done = sum(chunk.leaf.size for chunk in chunks), 0
    for chunk in chunks:
        with ChunkFile(store, chunk.leaf) as file:
            data = file.whole(space)
        if not chunk.leaf.names(sha256(data).raw):
            raise IntegrityError(
                "integrity.chunk",
                f"chunk {chunk.leaf.digest.short} here has other bytes than its own",
                hint="kvsync fsck",
                digest=chunk.leaf.digest,
            )
        shape = leaf_shape(chunk.layout, chunk.index) if encoding is Encoding.PLANES else None
        used, body = codec.encode(data, encoding, shape)
        out.add(chunk_name(chunk.leaf.digest, used), body)
        done += chunk.leaf.size
        progress("export", done, total, "bytes")
    out.end()
    return out.written
