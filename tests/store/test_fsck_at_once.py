"""fsck beside others: what changes under its eyes is no finding."""

from __future__ import annotations

from kvsync.store import Store, StoreLimits, fsck
from kvsync.store.reconcile import rebuild

NO_FLOOR = StoreLimits(free_floor_bytes=0)


def test_a_draft_whose_process_ends_during_the_comparison_is_not_stale(store, root, make_artifact, monkeypatch):
    artifact = make_artifact(1, 40)
    with Store.open(root, NO_FLOOR) as other:
        draft = other.pull_draft(*artifact.parts)
        draft.put(0, artifact.chunks[0])

        def killed_before(db, parts):
            draft._lock.release()  # all that is left of a killed process: nobody holds its lock
            return rebuild(db, parts)

        monkeypatch.setattr(fsck, "rebuild", killed_before)
        assert store.fsck().findings == ()
        assert store.usage().reserved_bytes == 0
