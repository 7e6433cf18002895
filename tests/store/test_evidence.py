"""Attestations and what they say: kept beside the artifact, capped, gone with it; evidence that outlives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsync.errors import NotFoundError, PolicyError
from kvsync.store import Store, StoreLimits
from kvsync.store.attestations import PER_SIGNER
from kvsync_protocol.divergence import Described, Divergence
from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.errors import MalformedError, MismatchError, TrustError
from kvsync_protocol.leaves import LeafTable
from kvsync_protocol.limits import MAX_ATTESTATIONS
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.signing import SigningKey
from tests.sync.forging import attested, diverging, renamed

ALICE, BOB = (SigningKey(bytes([number]) * 32) for number in (31, 32))
BOTH = [ALICE.public, BOB.public]


def keep(store: Store, artifact: Any) -> None:
    with store.pull_draft(*artifact.parts) as draft:
        for index in draft.missing():
            draft.put(index, artifact.chunks[index])
        draft.publish()


@pytest.fixture
def limits() -> StoreLimits:
    return StoreLimits(free_floor_bytes=0)


def test_only_trusted_signatures_are_kept_and_equal_findings_share_an_envelope(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    artifact = make_artifact()
    with Store.open(tmp_path / "store", limits) as store:
        with pytest.raises(NotFoundError):
            store.add_attestation(attested(artifact, ALICE), BOTH)
        keep(store, artifact)
        crowd = attested(artifact, ALICE)
        crowd = Envelope(crowd.payload_type, crowd.payload, (Signature("", bytes(64)), *crowd.signatures))
        before = store.usage().bytes
        assert store.add_attestation(crowd, BOTH)
        assert store.usage().bytes > before  # it counts for the quota
        assert not store.add_attestation(crowd, BOTH)
        assert store.add_attestation(attested(artifact, BOB), BOTH)
        [held] = store.attestations(artifact.id)
        assert set(held.signers(BOTH)) == set(BOTH)
        assert len(held.signatures) == 2
        with pytest.raises(TrustError):
            store.add_attestation(attested(artifact, SigningKey(bytes(32))), BOTH)
        with pytest.raises(TrustError):
            store.add_attestation(Envelope.seal("text/plain", held.payload, ALICE), BOTH)
        with pytest.raises(MalformedError):
            store.add_attestation(Envelope.seal(held.payload_type, b"{}", ALICE), BOTH)
        store.rebuild_index()
        assert store.fsck().clean
        store.remove(artifact.id)
        store.gc()
        assert store.usage().bytes == 0
        with pytest.raises(NotFoundError):
            store.attestations(artifact.id)


def test_what_says_no_more_makes_room_and_nobody_crowds_the_others_out(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    artifact = make_artifact(tokens=16 * 40)
    keys = [SigningKey(bytes([number]) * 32) for number in range(40, 50)]
    trusted = [*BOTH, *(key.public for key in keys)]
    with Store.open(tmp_path / "store", limits) as store:
        keep(store, artifact)
        for block in range(PER_SIGNER):
            assert store.add_attestation(attested(artifact, ALICE, block), trusted)
        assert not store.add_attestation(attested(artifact, ALICE, 30), trusted)
        assert store.add_attestation(attested(artifact, ALICE), trusted)  # all of it: the others add nothing now
        assert len(store.attestations(artifact.id)) == 1
        assert not store.add_attestation(attested(artifact, ALICE, 5), trusted)
        for key in keys:
            for block in range(PER_SIGNER):
                store.add_attestation(attested(artifact, key, block, block + 20), trusted)
        assert len(store.attestations(artifact.id)) <= MAX_ATTESTATIONS
        assert {k for s in store.evidence.signed(artifact.manifest, trusted) for k in s.signers} > {ALICE.public}
        assert store.fsck().clean


def test_an_attestation_of_blocks_that_are_not_there_is_refused(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    artifact = make_artifact()
    with Store.open(tmp_path / "store", limits) as store:
        keep(store, artifact)
        with pytest.raises(MismatchError):
            store.add_attestation(attested(artifact, ALICE, 0, 9), BOTH)


def test_what_is_refuted_is_matched_no_more_and_the_next_best_is(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    right = make_artifact(tokens=48)
    wrong = diverging(right, 1, BOB)
    keys = list(block_keys(start_key(right.manifest.fingerprints), right.token_ids, right.manifest.schedule))
    with Store.open(tmp_path / "store", limits) as store:
        keep(store, right)
        keep(store, wrong)
        prints = right.manifest.fingerprints
        assert store.find_prefix(keys) == (wrong.id, 3)
        assert store.find_whole(right.token_ids, prints) == wrong.id
        store.evidence.refute(attested(wrong, ALICE, 1, leaf=2))
        assert store.find_prefix(keys) == (right.id, 3)
        assert store.find_whole(right.token_ids, prints) == right.id
        with pytest.raises(PolicyError) as caught:
            store.evidence.check(wrong.id)
        assert caught.value.code == "evidence.refuted"
        store.evidence.refute(attested(right, ALICE, 1, leaf=2))
        assert store.find_prefix(keys) is None
        assert store.find_whole(right.token_ids, prints) is None


def test_evidence_outlives_the_artifacts_their_removal_and_a_lost_index(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    right = make_artifact()
    wrong = diverging(right, 1, BOB)
    with Store.open(tmp_path / "store", limits) as store:
        keep(store, right)
        keep(store, wrong)
        record = Divergence.of(1, store.evidence.describe(right.id), store.evidence.describe(wrong.id))
        assert store.evidence.add_divergence(record)
        assert not store.evidence.add_divergence(record)
        store.evidence.refute(attested(wrong, ALICE, 1, leaf=2))
        for artifact in (right, wrong):
            store.remove(artifact.id)
        store.gc()
    (tmp_path / "store" / "index.sqlite").unlink()
    with Store.open(tmp_path / "store", StoreLimits(free_floor_bytes=0, quota_bytes=1, draft_ttl_s=0)) as store:
        store.gc()
        assert store.fsck().clean
        assert [found.divergence for found in store.evidence.divergences()] == [record]
        assert store.evidence.refutation(wrong.id) is not None


def test_fsck_names_damaged_evidence_and_leaves_it_for_a_person(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    right = make_artifact()
    wrong = diverging(right, 1, BOB)
    with Store.open(tmp_path / "store", limits) as store:
        keep(store, right)
        keep(store, wrong)
        store.evidence.add_divergence(
            Divergence.of(1, store.evidence.describe(right.id), store.evidence.describe(wrong.id))
        )
        store.evidence.refute(attested(wrong, ALICE, 1, leaf=2))
        for folder in ("divergences", "refuted"):
            [file] = (tmp_path / "store" / folder).iterdir()
            file.write_bytes(file.read_bytes().replace(b"sha256:", b"sha257:", 1)[:-3])
        report = store.fsck()
        assert {f.code for f in report.findings} == {"store.divergence_damaged", "store.refutation_damaged"}
        assert not report.sound
        assert len(list((tmp_path / "store" / "divergences").iterdir())) == 1


def test_strangers_in_the_folders_of_evidence_stop_nothing_and_are_reported(
    tmp_path: Path, limits: StoreLimits, make_artifact: Callable[..., Any]
) -> None:
    artifact = make_artifact()
    with Store.open(tmp_path / "store", limits) as store:
        keep(store, artifact)
        store.add_attestation(attested(artifact, ALICE), BOTH)
        for folder in ("refuted", "divergences", f"artifacts/{artifact.id.hex}/attestations"):
            stranger = tmp_path / "store" / folder / "notes.json"
            stranger.touch(mode=0o600)
        keys = list(
            block_keys(start_key(artifact.manifest.fingerprints), artifact.token_ids, artifact.manifest.schedule)
        )
        assert store.find_prefix(keys[:2]) == (artifact.id, 2)
        assert store.evidence.divergences() == []
        assert len(store.attestations(artifact.id)) == 1
        assert [finding.code for finding in store.fsck().findings] == ["store.foreign"] * 3


def test_only_artifacts_that_can_differ_are_read_for_contradictions(
    store: Store, make_artifact: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = make_artifact()
    described = Described(
        artifact.envelope,
        artifact.manifest,
        LeafTable.parse(artifact.leaves),
        artifact.manifest.check_tokens(artifact.tokens),
    )
    others = [renamed(artifact, SigningKey(bytes([number]) * 32)) for number in range(60, 70)]
    liar = diverging(artifact, 1, BOB)
    for each in (*others, liar):
        keep(store, each)
    read = []
    describe = store.evidence.describe
    monkeypatch.setattr(store.evidence, "describe", lambda name: read.append(name) or describe(name))
    [(record, other)] = store.evidence.contradictions(described)
    assert (record.block, other.manifest.artifact) == (1, liar.id)
    assert read == [liar.id]
    keep(store, diverging(artifact, -1, ALICE))  # the final logits alone
    assert [record.block for record, _ in store.evidence.contradictions(described)] == [
        artifact.manifest.layout.blocks,
        1,
    ]
