"""Recompute blocks of a stored artifact from the state before them, and compare with what is signed.

    restore to the start of j ─► prefill block j ─► block files ─► chunks ─► SHA-256 = the signed leaf's?

After a block with equal bytes the context is the state that a restore would give, so neighbouring blocks go on
in it; after any other the next block begins from the stored bytes again. Stores nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvsync.engines.engine import Context, Engine
from kvsync.errors import StoreError
from kvsync.pack import ArtifactReader, ArtifactWriter
from kvsync.progress import Progress, silent
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.divergence import block_spans
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.layout import ChunkSpan
from kvsync_protocol.leaves import Leaf


@dataclass(frozen=True, slots=True)
class Wrong:
    """A leaf whose bytes were computed otherwise. `block` is the number of blocks for the final logits."""

    block: int
    leaf: int
    group: str
    signed: Digest
    found: Digest

    def as_dict(self) -> dict[str, object]:
        return {
            "block": self.block,
            "leaf": self.leaf,
            "group": self.group,
            "signed": str(self.signed),
            "found": str(self.found),
        }


@dataclass(slots=True)
class Findings:
    """What was recomputed: leaves by block, and the first wrong one of each block that has one."""

    leaves: dict[int, dict[int, Leaf]] = field(default_factory=dict)
    """By block, then by leaf index; the final logits under the number of blocks."""
    wrong: list[Wrong] = field(default_factory=list)
    tokens: int = 0
    """Tokens computed."""

    def blocks(self, total: int) -> list[int]:
        """Every block that was recomputed, ascending, of `total`; more than were asked for where recurrent layers
        have no snapshot before a block."""
        return sorted(block for block in self.leaves if block < total)


class _Hashing:
    """Takes chunks in artifact order and keeps their names alone."""

    def __init__(self) -> None:
        self.leaves: list[Leaf] = []

    def append(self, data: memoryview) -> Leaf:
        leaf = Leaf(sha256(data), data.nbytes)
        self.leaves.append(leaf)
        return leaf


def recompute(
    engine: Engine, store: Store, stored: StoredArtifact, blocks: Sequence[int], progress: Progress = silent
) -> Findings:
    """Compute `blocks`, ascending, of an artifact that the caller holds; with the last one the final logits too.

    Raises:
        StoreError: `store.incomplete` when chunks are missing.
        IntegrityError: `integrity.*` when what is stored is not what is signed.
        MismatchError: `mismatch.layout`.
        EngineError: as `Engine.prefill`.
    """
    return _Recomputation(engine, store, stored).run(blocks, progress)


class _Recomputation:
    """One run over some blocks."""

    def __init__(self, engine: Engine, store: Store, stored: StoredArtifact) -> None:
        if stored.extent is not None or store.whole(stored.artifact) is None:
            raise StoreError(
                "store.incomplete",
                f"artifact {stored.artifact.short} is not complete here",
                hint="kvsync fsck --repair --from PEER" if stored.extent is None else "kvsync pull fetches the rest",
            )
        self._engine = engine
        self._layout = stored.manifest.layout
        self._schedule = stored.manifest.schedule
        self._tokens = stored.tokens()
        self._table = stored.leaves()
        self._spans = block_spans(self._layout)
        self._reader = ArtifactReader(store, stored.artifact, self._layout, self._table)
        self._context: Context | None = None
        self._findings = Findings()
        if engine.layout(self._layout.tokens).groups != self._layout.groups:
            raise MismatchError("mismatch.layout", "the artifact's layers are not laid out like this model's")

    def run(self, blocks: Sequence[int], progress: Progress) -> Findings:
        sizes = [stop - start for start, stop in map(self._layout.block_range, blocks)]
        done = 0
        for block, size in zip(blocks, sizes, strict=True):
            self._block(block)
            done += size
            progress("audit", done, sum(sizes), "tokens")
        return self._findings

    def _block(self, block: int) -> None:
        layout = self._layout
        begin, end = layout.block_range(block)
        context = self._context
        if context is None or context.position != begin:
            begin = layout.restorable(begin)
            context = self._engine.restore(self._reader, begin) if begin else self._engine.new_context()
        hashing = _Hashing()
        first = begin // layout.block_tokens
        writer = ArtifactWriter(hashing, layout, next_block=first)
        logits = self._engine.prefill(context, self._tokens[begin:end], self._schedule, sink=writer.write_block)
        found = [first + number for number in range(block - first + 1)]
        if block == layout.blocks - 1:
            writer.write_logits(logits.buffer())
            found.append(layout.blocks)
        self._findings.tokens += end - begin
        leaves = iter(hashing.leaves)
        computed = {number: {span.index: next(leaves) for span in self._spans[number]} for number in found}
        wrong = [number for number in found if not self._compare(number, computed[number])]
        self._context = None if wrong else context

    def _compare(self, block: int, computed: Mapping[int, Leaf]) -> bool:
        known = block in self._findings.leaves
        self._findings.leaves[block] = dict(computed)
        wrong = next(
            (span for span in self._spans[block] if self._table.leaves[span.index] != computed[span.index]), None
        )
        if wrong is not None and not known:
            self._findings.wrong.append(self._wrong(block, wrong, computed[wrong.index]))
        return wrong is None

    def _wrong(self, block: int, span: ChunkSpan, found: Leaf) -> Wrong:
        return Wrong(block, span.index, span.group, self._table.leaves[span.index].digest, found.digest)
