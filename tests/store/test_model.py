"""Any sequence of operations leaves the store as a simple model says."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from benchmarks.seeded import build_artifact as build
from kvsync.store import Store, StoreLimits
from kvsync.store.index import snapshot
from kvsync_protocol.digest import sha256

BASE = build(0, 12, block_tokens=4)
ARTIFACTS = [
    BASE,
    build(1, 12, block_tokens=4, head=BASE.token_ids[:8]),
    build(2, 6, block_tokens=4, head=BASE.token_ids[:4]),
    build(3, 5, block_tokens=4),
]
NAMES = [sha256(chunk).hex for artifact in ARTIFACTS for chunk in artifact.chunks]
which = st.sampled_from(range(len(ARTIFACTS)))


def needed(artifact, count=None):
    return {sha256(chunk).hex for chunk in artifact.chunks[:count]}


def needed_at(artifact, position):
    layout = artifact.manifest.layout
    spans = layout.chunks_for_graft(position, logits=position == layout.tokens)
    return {sha256(artifact.chunks[span.index]).hex for span in spans}


class StoreModel(RuleBasedStateMachine):
    """Artifacts are complete or kept for some positions, partial (not published), computed in part, or absent."""

    @initialize()
    def begin(self):
        memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None)
        self.root = Path(self.folder.name) / "store"
        self.store = Store.open(self.root, StoreLimits(free_floor_bytes=0))
        self.complete, self.pinned, self.places = set(), set(), {}
        self.partial, self.computed, self.chunks = set(), {}, set()

    @rule(artifact=which, count=st.integers(0, 9))
    def pull_in_part(self, artifact, count):
        made = ARTIFACTS[artifact]
        with self.store.pull_draft(*made.parts) as draft:
            assert {sha256(made.chunks[i]).hex for i in draft.missing()} == needed(made) - self.chunks
            for index in draft.missing()[:count]:
                draft.put(index, made.chunks[index])
                self.chunks.add(sha256(made.chunks[index]).hex)
        if artifact not in self.complete or needed(made) - self.chunks:
            self.partial.add(artifact)
        else:
            self.partial.discard(artifact)

    @rule(artifact=which, data=st.data())
    def pull_for_a_position(self, artifact, data):
        made = ARTIFACTS[artifact]
        layout = made.manifest.layout
        position = data.draw(st.sampled_from([p for p in range(1, layout.tokens + 1) if layout.restorable(p) == p]))
        with self.store.pull_draft(*made.parts, positions=[position]) as draft:
            assert {sha256(made.chunks[i]).hex for i in draft.missing()} == needed_at(made, position) - self.chunks
            for index in draft.missing():
                draft.put(index, made.chunks[index])
            draft.publish()
        self.chunks |= needed_at(made, position)
        if artifact not in self.complete:
            self.places[artifact] = {position}
        elif artifact in self.places:
            self.places[artifact].add(position)
        kept = {digest for place in self.places.get(artifact, ()) for digest in needed_at(made, place)}
        if kept == needed(made):
            del self.places[artifact]
        self.complete.add(artifact)
        self.partial.discard(artifact)

    @rule(artifact=which)
    def pull(self, artifact):
        made = ARTIFACTS[artifact]
        with self.store.pull_draft(*made.parts) as draft:
            for index in draft.missing():
                draft.put(index, made.chunks[index])
            draft.publish()
        self.chunks |= needed(made)
        self.complete.add(artifact)
        self.places.pop(artifact, None)
        self.partial.discard(artifact)

    @rule(artifact=which, count=st.integers(0, 12), keep=st.integers(0, 12))
    def compute(self, artifact, count, keep):
        made = ARTIFACTS[artifact]
        with self.store.compute_draft(sha256(bytes([artifact]))) as draft:
            assert len(draft.leaves) == self.computed.get(artifact, 0)
            draft.truncate(min(keep, len(draft.leaves)))
            for chunk in made.chunks[len(draft.leaves) :][:count]:
                draft.append(chunk)
            done = len(draft.leaves)
            self.chunks |= needed(made, done)
            self.computed[artifact] = done
            if done == len(made.chunks):
                draft.publish(*made.parts)
                del self.computed[artifact]
                self.complete.add(artifact)
                self.places.pop(artifact, None)
                self.partial.discard(artifact)

    @precondition(lambda self: self.complete - self.pinned)
    @rule(data=st.data())
    def remove(self, data):
        artifact = data.draw(st.sampled_from(sorted(self.complete - self.pinned)))
        self.store.remove(ARTIFACTS[artifact].id)
        self.complete.discard(artifact)
        self.places.pop(artifact, None)

    @precondition(lambda self: self.complete)
    @rule(data=st.data())
    def toggle_pin(self, data):
        artifact = data.draw(st.sampled_from(sorted(self.complete)))
        (self.store.unpin if artifact in self.pinned else self.store.pin)(ARTIFACTS[artifact].id)
        self.pinned ^= {artifact}

    @rule()
    def gc(self):
        kept = set()
        for artifact in self.complete | self.partial:
            kept |= needed(ARTIFACTS[artifact])
        for artifact, count in self.computed.items():
            kept |= needed(ARTIFACTS[artifact], count)
        rehearsed = self.store.gc(dry_run=True)
        report = self.store.gc()
        assert rehearsed.chunks == report.chunks == len(self.chunks - kept)
        self.chunks &= kept

    @rule()
    def reopen(self):
        self.store.close()
        self.store = Store.open(self.root, StoreLimits(free_floor_bytes=0))

    @rule()
    def rebuild(self):
        with self.store._parts.index.reading() as db:
            before = snapshot(db)
        self.store.rebuild_index()
        with self.store._parts.index.reading() as db:
            assert snapshot(db) == before

    @invariant()
    def files_and_counts_agree(self):
        assert {path.name for path in (self.root / "chunks").glob("*/*")} == self.chunks
        stored = self.store.artifacts()
        assert {s.artifact for s in stored} == {ARTIFACTS[a].id for a in self.complete}
        kept = {s.artifact: set(s.extent.positions) for s in stored if s.extent is not None}
        assert kept == {ARTIFACTS[a].id: places for a, places in self.places.items()}
        assert {s.artifact for s in stored if s.pinned} == {ARTIFACTS[a].id for a in self.pinned}
        usage = self.store.usage()
        assert (usage.chunks, usage.artifacts) == (len(self.chunks), len(self.complete))
        assert usage.partial == len(self.places)
        assert usage.drafts == len(self.partial) + len(self.computed)
        assert usage.reserved_bytes == 0

    def teardown(self):
        if hasattr(self, "store"):
            assert self.store.fsck().clean
            self.store.close()
            self.folder.cleanup()


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
