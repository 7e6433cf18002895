"""From chunks to tensors: reads chunks into the rows they belong to and hashes those same bytes there.

The bytes that were checked are the bytes that are used: they are read once, by `preadv`, into memory of
this process, hashed where they lie, and never read again. On the first mismatch everything is dropped. Given
`VerifiedChunks`, what this process has hashed before is taken from sealed memory.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import local
from typing import Protocol

from kvsync.errors import StoreError
from kvsync.pack.scatter import Target, check_targets, slices
from kvsync.pack.verified import VerifiedChunks
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.errors import IntegrityError, MismatchError
from kvsync_protocol.layout import LOGITS_GROUP, ChunkSpan, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import MAX_CHUNK_BYTES

MAX_BUFFERS = 512
"""Buffers of one preadv; Linux takes at most 1,024."""


class ChunkSource(Protocol):
    """Opens chunk files by digest, and is told of bad ones; `kvsync.store.Store` is one."""

    def open_chunk(self, digest: Digest) -> int: ...
    def doubt_chunk(self, digest: Digest) -> bool: ...


@dataclass(frozen=True, slots=True)
class ReadReport:
    """What a restore read and verified."""

    chunks: int
    bytes: int
    seconds: float


class ArtifactReader:
    """Verified access to the chunks of one artifact.

    Args:
        source: where chunk files are opened.
        artifact: its id, for messages.
        layout: the signed geometry.
        leaves: the leaf table, already checked against the signed manifest.
        threads: how many chunks are read and hashed at once; 0 for one per CPU.
        verified: chunks that this process has hashed before; those read now are added.
    """

    def __init__(
        self,
        source: ChunkSource,
        artifact: ArtifactId,
        layout: Layout,
        leaves: LeafTable,
        *,
        threads: int = 0,
        verified: VerifiedChunks | None = None,
    ) -> None:
        self.layout = layout
        self.artifact = artifact
        self._source = source
        self._leaves = leaves
        self._threads = threads or len(os.sched_getaffinity(0))
        self._verified = verified
        self.bytes_verified_before = 0
        """Of what was read so far, bytes out of sealed memory."""
        self._scratch = local()

    def restore(self, position: int, targets: Mapping[tuple[int, str], Target]) -> ReadReport:
        """Fill `targets` with the state at `position`, one of those that the layout calls restorable.

        Raises:
            MismatchError: `mismatch.position` when no state is stored for this position.
            IntegrityError: `integrity.chunk`, `integrity.header`, naming the chunk.
            NotFoundError: `store.unknown_chunk`.
            EngineError: `engine.target`.
        """
        if position < 1 or self.layout.restorable(position) != position:
            raise MismatchError("mismatch.position", f"no state is stored for position {position}")
        check_targets(self.layout, position, targets)
        return self._each(
            self.layout.chunks_for_graft(position, logits=False),
            lambda span, scratch: slices(self.layout, span, targets, scratch),
        )

    def logits(self) -> bytes:
        """The final logits, `[vocab]` in the layout's logits dtype. Raises as `restore`."""
        file = self.layout.file(self.layout.blocks, LOGITS_GROUP)
        whole = memoryview(bytearray(file.size))
        spans = [span for span in self.layout.chunks() if span.group == LOGITS_GROUP]
        self._each(spans, lambda span, _: [whole[span.offset : span.offset + span.size]])
        return bytes(whole[len(file.header) :])

    def verify(self, progress: Progress = silent) -> ReadReport:
        """Read and hash every chunk, keeping none. Raises as `restore`."""
        return self._each(self.layout.chunks(), lambda span, scratch: [scratch[: span.size]], progress)

    def _each(
        self,
        spans: Iterable[ChunkSpan],
        place: Callable[[ChunkSpan, memoryview], list[memoryview]],
        progress: Progress = silent,
    ) -> ReadReport:
        """Read and check all spans on the pool; the first error ends the rest before it is raised."""
        started = time.perf_counter()
        todo = list(spans)
        total, done = sum(span.size for span in todo), 0
        with ThreadPoolExecutor(min(self._threads, max(1, len(todo))), thread_name_prefix="kvsync-read") as pool:
            jobs = {pool.submit(self._read, span, place): span for span in todo}
            try:
                for job in as_completed(jobs):
                    if job.result():
                        self.bytes_verified_before += jobs[job].size
                    done += jobs[job].size
                    progress("verify", done, total, "bytes")
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return ReadReport(len(todo), total, time.perf_counter() - started)

    def _read(self, span: ChunkSpan, place: Callable[[ChunkSpan, memoryview], list[memoryview]]) -> bool:
        """Whether the bytes came out of sealed memory."""
        buffers = place(span, self._scratch_buffer())
        leaf = self._leaves.leaves[span.index]
        sealed = self._verified is not None and _copy_verified(self._verified, leaf, buffers)
        if not sealed:
            self._read_and_hash(span, leaf, buffers)
            if self._verified is not None:
                self._verified.keep(leaf.digest, buffers)
        self._check_header(span, buffers)
        return sealed

    def _read_and_hash(self, span: ChunkSpan, leaf: Leaf, buffers: list[memoryview]) -> None:
        descriptor = self._source.open_chunk(leaf.digest)
        try:
            size = os.fstat(descriptor).st_size
            if size != leaf.size or not _read_all(descriptor, buffers):
                raise self._bad(span, f"has {size} bytes where {leaf.size} are signed")
        except OSError as error:
            raise StoreError(
                "store.unreadable", f"chunk {span.index} of {self.artifact.short} cannot be read: {error.strerror}"
            ) from error
        finally:
            os.close(descriptor)
        state = hashlib.sha256()
        for buffer in buffers:
            state.update(buffer)
        if not leaf.names(state.digest()):
            raise self._bad(span, "does not have the signed digest")

    def _check_header(self, span: ChunkSpan, buffers: list[memoryview]) -> None:
        """A signed block file whose header is not the computed one was made for another geometry. SPEC 3.3."""
        header = self.layout.file(span.block, span.group).header
        expected = header[span.offset : span.offset + span.size]
        if expected and bytes(buffers[0][: len(expected)]) != expected:
            raise IntegrityError(
                "integrity.header", f"chunk {span.index} does not begin as its geometry demands", chunk=span.index
            )

    def _scratch_buffer(self) -> memoryview:
        """4 MiB of this thread's own, for headers and for tokens outside a window."""
        buffer: memoryview | None = getattr(self._scratch, "buffer", None)
        if buffer is None:
            buffer = self._scratch.buffer = memoryview(bytearray(MAX_CHUNK_BYTES))
        return buffer

    def _bad(self, span: ChunkSpan, what: str) -> IntegrityError:
        """The refusal; the chunk is set aside, so that it is fetched or computed anew instead of refused for ever."""
        self._source.doubt_chunk(self._leaves.leaves[span.index].digest)
        return IntegrityError(
            "integrity.chunk",
            f"chunk {span.index} of {self.artifact.short} (block {span.block}, {span.group}) {what}",
            hint="kvsync pull, or kvsync fsck --repair, fetches it again",
            chunk=span.index,
            block=span.block,
            group=span.group,
        )


def _copy_verified(verified: VerifiedChunks, leaf: Leaf, buffers: list[memoryview]) -> bool:
    """Fill the buffers from sealed memory; False when the chunk is not there."""
    descriptor = verified.open(leaf.digest, leaf.size)
    if descriptor is None:
        return False
    try:
        return _read_all(descriptor, buffers)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, buffers: list[memoryview]) -> bool:
    """Fill every buffer from the start of the file; False when the file ends early."""
    offset = 0
    pending = list(buffers)
    while pending:
        got = os.preadv(descriptor, pending[:MAX_BUFFERS], offset)
        if got == 0:
            return False
        offset += got
        while pending and got >= pending[0].nbytes:
            got -= pending[0].nbytes
            pending.pop(0)
        if got:
            pending[0] = pending[0][got:]
    return True
