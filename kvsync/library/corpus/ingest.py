"""Bring a library in step with a folder: passages that are new are computed, those of before are kept or dropped.

    folder ─► documents ─► passages ─► known? ─► artifact ─► signed ─► listed, some at a time ─► named
                                        └─ kept

What a passage says follows from the document, the model and the limit alone, so a second run over the same folder
computes nothing, and one that was killed goes on where it was: artifacts are in the store by their content. The
passages of a document that has changed leave the list when all of its new ones are in it. Only passages that this
node has signed are ever dropped. Who computes is the caller's to say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kvsync.engines.engine import Engine
from kvsync.errors import UsageError
from kvsync.library.corpus.folder import UNREADABLE, PassedOver, read_folder
from kvsync.library.corpus.phrasing import UNKNOWN, Phrasing
from kvsync.library.corpus.report import Ingested
from kvsync.library.library import Library, artifact_name
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.errors import IntegrityError, MismatchError
from kvsync_protocol.library import MAX_LIBRARY_ENTRIES
from kvsync_protocol.passage import Passage

DEFAULT_TOKENS: Final = 1024
LIST_EVERY_S: Final = 5.0
LIST_EVERY: Final = 128
"""Passages are listed when so many wait, or for so long: the list is one file, and is written whole."""

Compute = Callable[[str, Progress], ArtifactId]
"""Makes the artifact of a text with the engine's model, signed by this node, and says which it is."""


@dataclass(slots=True)
class _Known:
    """What the library has of this node's making: passages by what they say, and by source."""

    artifacts: dict[Digest, tuple[Digest, ArtifactId]] = field(default_factory=dict)
    sources: dict[str, set[Digest]] = field(default_factory=dict)
    others: int = 0


@dataclass(slots=True)
class _Plan:
    """A document as it shall stand in the library: passages that are there, and those to compute."""

    source: str
    kept: set[Digest] = field(default_factory=set)
    wanted: list[Passage] = field(default_factory=list)
    tokens: int = 0


@dataclass(slots=True)
class _Change:
    """What waits to be listed."""

    added: list[Envelope] = field(default_factory=list)
    names: list[tuple[Digest, ArtifactId]] = field(default_factory=list)
    removed: list[Digest] = field(default_factory=list)


class Ingest:
    """One run over one folder. With `prune` the passages of documents that are there no more are dropped."""

    def __init__(
        self,
        library: Library,
        engine: Engine,
        folder: Path,
        *,
        compute: Compute,
        max_tokens: int = DEFAULT_TOKENS,
        prune: bool = False,
        progress: Progress = silent,
    ) -> None:
        self._library = library
        self._engine = engine
        self._folder = folder
        self._compute = compute
        self._phrasing = Phrasing(engine, max_tokens)
        self._prune = prune
        self._progress = progress
        self._change = _Change()
        self._listed = 0.0
        self._removed = 0

    def run(self) -> Ingested:
        """Raises as `Library.ingest`."""
        began = time.perf_counter()
        self._library.store.shelf.require()
        known = self._read_known()
        passed_over: list[PassedOver] = []
        plans = list(self._plans(known, passed_over))
        gone = self._gone(known, plans, passed_over)
        self._check_room(known, plans, gone if self._prune else ())
        if self._prune:
            self._change.removed += [digest for source in gone for digest in known.sources[source]]
        self._run(known, plans)
        self._flush()
        self._name_unnamed(plans, known)
        self._library.store.refresh()
        changed = [plan for plan in plans if plan.wanted or plan.kept != known.sources.get(plan.source)]
        new = sum(plan.source not in known.sources for plan in changed)
        wanted = [passage for plan in plans for passage in plan.wanted]
        return Ingested(
            library=self._library.name,
            new=new,
            changed=len(changed) - new,
            unchanged=len(plans) - len(changed),
            passed_over=tuple(passed_over),
            gone=tuple(gone),
            pruned=self._prune,
            passages=len(wanted) + sum(len(plan.kept) for plan in plans),
            computed=len(wanted),
            removed=self._removed,
            tokens=sum(plan.tokens for plan in plans),
            tokens_computed=sum(passage.tokens for passage in wanted),
            seconds=time.perf_counter() - began,
        )

    def _read_known(self) -> _Known:
        own, found, count = self._library.client.keys.signer.public, _Known(), 0
        for stored in self._library.store.passages():
            if own in stored.signers:
                said = stored.passage
                found.artifacts[_saying(said)] = stored.digest, said.artifact
                found.sources.setdefault(said.source, set()).add(stored.digest)
                count += 1
        found.others = len(self._library.store.listing().entries) - count
        return found

    def _plans(self, known: _Known, passed_over: list[PassedOver]) -> Iterator[_Plan]:
        for number, document in enumerate(read_folder(self._folder)):
            self._progress("documents", number, number + 1, "documents")
            if isinstance(document, PassedOver):
                passed_over.append(document)
                continue
            plan = _Plan(document.source)
            for passage in self._phrasing.passages(document):
                plan.tokens += passage.tokens
                digest, artifact = known.artifacts.get(_saying(passage), (None, UNKNOWN))
                if digest is not None and self._usable(artifact):
                    plan.kept.add(digest)
                else:
                    plan.wanted.append(passage)
            yield plan

    def _usable(self, artifact: ArtifactId) -> bool:
        """All of it is here, and could be grafted."""
        client = self._library.client
        stored = client.store.whole(artifact)
        if stored is None or stored.extent is not None:
            return False
        try:
            self._engine.fingerprints.check(stored.manifest.fingerprints, accept=client.settings.accept)
        except MismatchError:
            return False
        return True

    def _gone(self, known: _Known, plans: list[_Plan], passed_over: list[PassedOver]) -> list[str]:
        """Sources of before that are no documents now; of what cannot be read just now nobody knows."""
        silent_ones = tuple(each.source for each in passed_over if each.reason == UNREADABLE)
        here = {plan.source for plan in plans}
        return sorted(
            source
            for source in known.sources.keys() - here
            if not any(source == each or source.startswith(f"{each}/") for each in silent_ones)
        )

    def _check_room(self, known: _Known, plans: list[_Plan], leaving: Sequence[str]) -> None:
        """Before hours of computing. Raises UsageError `library.full`."""
        here = {plan.source for plan in plans} | {*leaving}
        staying = sum(len(digests) for source, digests in known.sources.items() if source not in here)
        count = known.others + staying + sum(len(plan.kept) + len(plan.wanted) for plan in plans)
        if count > MAX_LIBRARY_ENTRIES:
            raise UsageError(
                "library.full",
                f"{self._library.name!r} would have {count} entries and passages, {MAX_LIBRARY_ENTRIES} are the most",
                hint="use a larger --max-tokens, or several libraries",
            )

    def _run(self, known: _Known, plans: list[_Plan]) -> None:
        total, done = sum(passage.tokens for plan in plans for passage in plan.wanted), 0
        self._listed = time.monotonic()
        for plan in plans:
            made = {*plan.kept}
            for passage in plan.wanted:
                made.add(self._add(passage, self._compute(passage.prompt, self._behind(done, total))))
                done += passage.tokens
                self._progress("ingest", done, total, "tokens")
                if len(self._change.added) >= LIST_EVERY or time.monotonic() - self._listed >= LIST_EVERY_S:
                    self._flush()
            self._change.removed += known.sources.get(plan.source, set()) - made

    def _add(self, passage: Passage, artifact: ArtifactId) -> Digest:
        """The name of what will be listed."""
        record = self._library.client.store.artifact(artifact).manifest.tokens
        if (record.digest, record.count) != (passage.tokens_digest, passage.tokens):
            raise IntegrityError("passage.tokens", "the artifact that was made holds other tokens than the passage")
        made = replace(passage, artifact=artifact)
        self._change.added.append(made.seal(self._library.client.keys.signer))
        self._change.names.append((made.digest, artifact))
        return made.digest

    def _flush(self) -> None:
        """List what waits. Names come after: whoever is killed between finds them missing, and gives them."""
        change, self._change = self._change, _Change()
        if change.added or change.removed:
            self._library.store.change(change.added, change.removed)
            for digest, artifact in change.names:
                self._library.keep(digest, artifact)
            for digest in change.removed:
                self._library.release(digest)
            self._removed += len(change.removed)
        self._listed = time.monotonic()

    def _name_unnamed(self, plans: list[_Plan], known: _Known) -> None:
        """Give the names that a run which was killed still owed."""
        artifacts = dict(known.artifacts.values())
        held = {ref.name for ref in self._library.client.store.refs()}
        for plan in plans:
            for digest in plan.kept:
                if artifact_name(self._library.name, digest) not in held:
                    self._library.keep(digest, artifacts[digest])

    def _behind(self, before: int, whole: int) -> Progress:
        """The progress of one artifact as a part of the whole."""

        def tell(stage: str, done: int, total: int, unit: str) -> None:
            if unit == "tokens":
                self._progress("ingest", before + done, whole, unit)

        return tell


def _saying(passage: Passage) -> Digest:
    """Equal for passages that say the same, whatever bytes their artifacts came out as."""
    return replace(passage, artifact=UNKNOWN).digest
