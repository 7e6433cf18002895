"""Take everything that a bundle holds into the store, or nothing: judged first, each chunk hashed, published last.

    index ─► envelopes, tables, ids ─► every rule ─► drafts of all ─► chunks, once each ─► end ─► publish ─► names
    signed   signed, hashed            as a pull     leases, room     those missing here

Whatever ends an import early, verified chunks stay and the next one takes only the rest. The file is read once,
front to back, so a pipe does as well.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack

from kvsync.bundle.contents import BundledChunk, Contents, bundled_chunks
from kvsync.bundle.judging import Candidate, Judge
from kvsync.bundle.members import MemberReader, Readable
from kvsync.bundle.report import BundleReport, Moved
from kvsync.config import Settings
from kvsync.keys import NodeKeys, TrustList
from kvsync.pack.codec import Codec
from kvsync.pack.shape import leaf_shape
from kvsync.peer.stream import buffer
from kvsync.progress import Progress, silent
from kvsync.store import PullDraft, Store
from kvsync_protocol.bulk import MAX_WIRE_BYTES, Encoding
from kvsync_protocol.bundle import (
    INDEX_NAME,
    PAYLOAD_TYPE,
    BundledArtifact,
    BundleIndex,
    artifact_member,
    chunk_encoding,
    small_members,
)
from kvsync_protocol.digest import Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.limits import LEAF_ENTRY_BYTES, MAX_CHUNK_BYTES, MAX_ENVELOPE_BYTES
from kvsync_protocol.manifest import PAYLOAD_TYPE as MANIFEST_TYPE


def import_bundle(
    store: Store,
    trust: TrustList,
    file: Readable,
    *,
    name: str,
    keys: NodeKeys,
    settings: Settings,
    fingerprints: Fingerprints | None = None,
    names: bool = True,
    progress: Progress = silent,
    dry_run: bool = False,
) -> BundleReport:
    """Take the artifacts of a bundle; `name` is the file's, for the report. Without `names` its refs are passed over.

    `fingerprints` are those of the model it is for, or None for a host that merely carries it. A dry run reads
    descriptions and no chunk, changes nothing, and its report holds every rule's verdict.

    Raises:
        MalformedError: `bundle.*` for a file that is none or was damaged, `envelope.*`, `manifest.*`, `ref.*`.
        IntegrityError: `bundle.digest`, `bundle.chunk`, `integrity.*`, `leaves.*`.
        TrustError: `bundle.exporter`, `trust.*`; PolicyError and MismatchError as a pull.
        VersionError: `version.format`. StoreError: `store.full`, `store.quota`, `file.unreadable`.
        UnavailableError: `store.busy` while another transfer holds one of the artifacts.
    """
    own = keys.current()
    judge = Judge(store, trust, own, settings, fingerprints, dry_run=dry_run)
    return _Import(store, trust, judge, settings, MemberReader(file), progress).run(
        name, names=names, dry_run=dry_run
    )


class _Import:
    """One import's state."""

    def __init__(
        self,
        store: Store,
        trust: TrustList,
        judge: Judge,
        settings: Settings,
        members: MemberReader,
        progress: Progress,
    ) -> None:
        self._store = store
        self._trust = trust
        self._judge = judge
        self._settings = settings
        self._members = members
        self._progress = progress
        self._began = time.monotonic()

    def run(self, file: str, *, names: bool, dry_run: bool) -> BundleReport:
        sealed = Envelope.parse(self._members.small(INDEX_NAME, MAX_ENVELOPE_BYTES))
        verified, exporter = self._judge.exporter(sealed, PAYLOAD_TYPE)
        index = BundleIndex.parse(verified)
        found = [self._describe(*each, names=names) for each in enumerate(index.artifacts)]
        self._judge.judge(found)
        contents = [Contents(each.manifest.layout, each.table, each.extent) for each in found]
        here = [self._here(each) for each in contents]
        chunks = list(bundled_chunks(contents))
        lacking = [chunk for chunk in chunks if not self._store.has_chunk(chunk.leaf.digest)]
        if not dry_run:
            lacking = self._take(found, chunks)
        return BundleReport(
            file=file,
            exporter=exporter,
            dry_run=dry_run,
            artifacts=tuple(map(_moved, found, contents, here)),
            chunks_moved=len(lacking),
            bytes_moved=sum(chunk.leaf.size for chunk in lacking),
            bytes_file=self._members.read_bytes,
            seconds=time.monotonic() - self._began,
        )

    def _describe(self, number: int, bundled: BundledArtifact, *, names: bool) -> Candidate:
        """Everything small of one artifact, each part checked against what was checked before it."""
        sealed = self._members.small(artifact_member(number, "envelope.json"), MAX_ENVELOPE_BYTES, bundled.envelope)
        found = self._judge.admit(bundled, Envelope.parse(sealed))
        manifest = found.manifest
        found.leaves = self._members.small(artifact_member(number, "leaves"), LEAF_ENTRY_BYTES * manifest.tree.size)
        found.table = manifest.check_leaves(found.leaves)
        found.tokens = self._members.small(artifact_member(number, "tokens"), 4 * manifest.tokens.count)
        manifest.check_tokens(found.tokens)
        for place, (name, digest) in enumerate(small_members(number, bundled)):
            envelope = Envelope.parse(self._members.small(name, MAX_ENVELOPE_BYTES, digest))
            if place < len(bundled.attestations):
                found.attestations.append(envelope)
            elif names:
                found.refs.append(self._judge.named(bundled, envelope))
        return found

    def _here(self, contents: Contents) -> int:
        leaves = contents.table.leaves
        return sum(leaves[i].size for i in contents.indices if self._store.has_chunk(leaves[i].digest))

    def _take(self, found: Sequence[Candidate], chunks: Sequence[BundledChunk]) -> list[BundledChunk]:
        """Every chunk that is missing here, then all artifacts; which chunks those were."""
        deadline = time.monotonic() + self._settings.transfer_deadline_s
        with ExitStack() as stack:
            # In ascending order of their ids, as all who want several at once: so nobody waits in a circle.
            drafts = [stack.enter_context(self._draft(each, deadline)) for each in found]
            wanted = {
                draft.leaves.leaves[index].digest: (draft, index) for draft in drafts for index in draft.missing()
            }
            moved = self._receive(chunks, wanted)
            self._members.end()
            for candidate, draft in zip(found, drafts, strict=True):
                candidate.envelope.verify(MANIFEST_TYPE, self._trust.keys())  # nobody withdrew it meanwhile
                draft.publish()
                self._judge.keep(candidate)
        return moved

    def _draft(self, candidate: Candidate, deadline: float) -> PullDraft:
        return self._store.pull_draft(
            candidate.envelope,
            candidate.manifest,
            candidate.leaves,
            candidate.tokens,
            positions=candidate.positions,
            deadline=deadline,
        )

    def _receive(
        self, chunks: Sequence[BundledChunk], wanted: dict[Digest, tuple[PullDraft, int]]
    ) -> list[BundledChunk]:
        codec, body, space = Codec(), buffer(MAX_WIRE_BYTES), buffer(MAX_CHUNK_BYTES)
        total, done = sum(chunk.leaf.size for chunk in chunks), 0
        moved = []
        for chunk in chunks:
            digest, size = chunk.leaf.digest, chunk.leaf.size
            member = self._members.head()
            encoding = chunk_encoding(member.name, digest)
            if member.size > MAX_WIRE_BYTES:
                raise MalformedError("bundle.size", f"chunk {digest.short} is larger than its limit")
            self._members.into(body[: member.size])
            if digest in wanted:
                draft, index = wanted[digest]
                shape = leaf_shape(chunk.layout, chunk.index) if encoding is Encoding.PLANES else None
                try:
                    codec.decode(body[: member.size], encoding, space[:size], shape)
                    draft.put(index, space[:size])
                except (IntegrityError, MalformedError) as error:
                    raise IntegrityError(
                        "bundle.chunk",
                        f"chunk {digest.short} is damaged in the bundle",
                        hint="copy the bundle again: what was verified is not read twice",
                        digest=digest,
                        found=error.code,
                    ) from error
                moved.append(chunk)
            done += size
            self._progress("import", done, total, "bytes")
        return moved


def _moved(candidate: Candidate, contents: Contents, here: int) -> Moved:
    return Moved(
        artifact=candidate.manifest.artifact,
        names=tuple(ref.name for ref, _ in candidate.refs),
        positions=candidate.positions,
        chunks=sum(1 for _ in contents.indices),
        bytes_total=contents.bytes,
        bytes_here=here,
        verdicts=candidate.policies.verdicts,
    )
