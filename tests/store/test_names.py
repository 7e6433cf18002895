"""Refs, pins, resolve, signatures: what people say, kept against rollback."""

from __future__ import annotations

import dataclasses

import pytest

from kvsync.errors import NotFoundError, StoreError, UsageError
from kvsync.store import Store
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.errors import TrustError
from kvsync_protocol.limits import MAX_SIGNATURES
from kvsync_protocol.ref import PAYLOAD_TYPE as REF_TYPE
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey

KEY, OTHER = SigningKey(b"\x01" * 32), SigningKey(b"\x02" * 32)
ONE, TWO = ArtifactId(sha256(b"one")), ArtifactId(sha256(b"two"))


def name(store, artifact, sequence, *, key=KEY, text="team/handbook"):
    ref = Ref(text, artifact, sequence)
    store.set_ref(ref, ref.seal(key), key.public)


def test_a_ref_stands_for_its_artifact_after_reopening(store, root):
    name(store, ONE, 1)
    name(store, TWO, 7, text="other")
    with Store.open(root) as again:
        assert [(r.name, r.artifact, r.sequence, r.signer) for r in again.refs()] == [
            ("other", TWO, 7, KEY.public),
            ("team/handbook", ONE, 1, KEY.public),
        ]
        assert again.resolve("team/handbook") == ONE
        assert again.ref_sequence("team/handbook", KEY.public) == 1
        assert again.ref_sequence("team/handbook", OTHER.public) == 0


@pytest.mark.parametrize(("artifact", "sequence"), [(ONE, 4), (TWO, 4), (TWO, 5), (ONE, 1)])
def test_a_sequence_that_is_not_higher_is_a_rollback(store, artifact, sequence):
    name(store, ONE, 5)
    with pytest.raises(TrustError) as refused:
        name(store, artifact, sequence)
    assert refused.value.code == "trust.rollback"
    assert store.resolve("team/handbook") == ONE


def test_the_same_ref_again_changes_nothing(store):
    name(store, ONE, 5)
    name(store, ONE, 5)
    name(store, TWO, 6)
    assert store.resolve("team/handbook") == TWO


def test_removing_a_ref_does_not_reset_its_sequence(store, root):
    name(store, ONE, 5)
    store.remove_ref("team/handbook")
    assert store.refs() == []
    with pytest.raises(NotFoundError) as missing:
        store.resolve("team/handbook")
    assert missing.value.code == "store.unknown_name"
    with pytest.raises(NotFoundError):
        store.remove_ref("team/handbook")
    (root / "index.sqlite").unlink()
    with Store.open(root) as again:
        for artifact, sequence in ((ONE, 4), (TWO, 4), (TWO, 5)):
            with pytest.raises(TrustError) as refused:
                name(again, artifact, sequence)
            assert refused.value.code == "trust.rollback"
        name(again, ONE, 5)  # what was removed may be taken again
        assert again.resolve("team/handbook") == ONE
        name(again, TWO, 6)
        assert again.resolve("team/handbook") == TWO


def test_sequences_are_counted_per_signer(store):
    name(store, ONE, 50)
    name(store, TWO, 3, key=OTHER)
    assert store.resolve("team/handbook") == TWO
    with pytest.raises(TrustError):
        name(store, ONE, 50)
    name(store, ONE, 51)
    with pytest.raises(TrustError):
        name(store, TWO, 3, key=OTHER)


def test_a_ref_must_be_what_its_signer_signed(store):
    ref = Ref("team/handbook", ONE, 1)
    for wrong, signer in ((ref, OTHER), (Ref("team/handbook", TWO, 1), KEY), (Ref("another", ONE, 1), KEY)):
        with pytest.raises(TrustError) as refused:
            store.set_ref(wrong, ref.seal(KEY), signer.public)
        assert refused.value.code == "trust.untrusted_signer"
    assert store.refs() == []


@pytest.mark.parametrize("damage", [b"", b"{}", b"not json", b'{"version":2}'])
def test_a_damaged_ref_file_is_named(store, root, damage):
    name(store, ONE, 1)
    next((root / "refs").iterdir()).write_bytes(damage)
    with pytest.raises(StoreError) as refused:
        store.refs()
    assert refused.value.code == "store.ref_damaged"
    assert [finding.code for finding in store.fsck().findings] == ["store.ref_damaged"]


def test_a_ref_file_under_another_name_is_damage(store, root):
    name(store, ONE, 1)
    name(store, TWO, 1, text="other")
    first, second = sorted((root / "refs").iterdir())
    first.write_bytes(second.read_bytes())
    with pytest.raises(StoreError) as refused:
        store.refs()
    assert refused.value.code == "store.ref_damaged"


def test_resolve_takes_ids_names_and_beginnings(store, make_artifact, fill):
    artifact = make_artifact(1, 20)
    fill(store, artifact)
    for text in (str(artifact.id), artifact.id.hex, artifact.id.hex[:8], f"sha256:{artifact.id.hex[:9]}"):
        assert store.resolve(text) == artifact.id
    for text, code in (
        (str(ONE), "store.unknown_artifact"),
        ("no/such/name", "store.unknown_name"),
        (ONE.hex[:8], "store.unknown_name"),
        (artifact.id.hex[:7], "store.unknown_name"),
        ("../" + artifact.id.hex, "store.unknown_name"),
        ("", "store.unknown_name"),
    ):
        with pytest.raises(NotFoundError) as refused:
            store.resolve(text)
        assert refused.value.code == code, text


def test_an_ambiguous_beginning_is_refused(store, make_artifact, fill):
    fill(store, make_artifact(1, 20))
    near = make_artifact(1, 20).id.raw[:-1] + b"\0"  # no two real ids within reach share 8 digits
    with store._parts.index.writing() as db:
        db.execute("CREATE TEMP TABLE twin AS SELECT * FROM artifacts")
        db.execute("UPDATE twin SET key = NULL, id = ?", (near,))
        db.execute("INSERT INTO artifacts SELECT * FROM twin")
    with pytest.raises(UsageError) as refused:
        store.resolve(make_artifact(1, 20).id.hex[:10])
    assert refused.value.code == "store.ambiguous"
    assert len(refused.value.fields["candidates"]) == 2


def test_a_name_shadows_no_id(store, make_artifact, fill):
    artifact = make_artifact(1, 20)
    fill(store, artifact)
    name(store, ONE, 1, text=artifact.id.hex)
    name(store, TWO, 1, text=artifact.id.hex[:8])
    name(store, artifact.id, 1, text=artifact.id.hex[:9])
    assert store.resolve(artifact.id.hex) == artifact.id
    assert store.resolve(artifact.id.hex[:9]) == artifact.id
    with pytest.raises(UsageError) as refused:
        store.resolve(artifact.id.hex[:8])
    assert refused.value.code == "store.ambiguous"
    assert set(refused.value.fields["candidates"]) == {str(TWO), str(artifact.id)}


def test_a_name_is_moved_by_its_owners_only(store, root):
    def bring(artifact, sequence, *keys, trusted=(KEY, OTHER)):
        ref = Ref("team/handbook", artifact, sequence)
        signers = [key.public for key in keys]
        store.set_ref(ref, Envelope.seal(REF_TYPE, ref.encode(), *keys), *signers, owners={k.public for k in trusted})

    bring(ONE, 5, KEY)
    with pytest.raises(TrustError) as refused:
        bring(TWO, 99, OTHER)
    assert refused.value.code == "trust.ref_owner"
    assert store.resolve("team/handbook") == ONE
    bring(TWO, 6, KEY, OTHER)  # both keys sign while the one takes over from the other
    bring(ONE, 7, OTHER)
    for keys in ((KEY,), (OTHER,), (KEY, OTHER)):  # and neither lets an older one back in
        with pytest.raises(TrustError) as rolled_back:
            bring(TWO, 6, *keys)
        assert rolled_back.value.code == "trust.rollback"
    with Store.open(root) as again:
        assert [(r.artifact, r.signers) for r in again.refs()] == [(ONE, (OTHER.public,))]
    bring(TWO, 8, KEY, trusted=(KEY,))  # whoever is trusted no more owns nothing
    assert store.resolve("team/handbook") == TWO
    store.remove_ref("team/handbook")
    bring(ONE, 8, OTHER)
    assert store.resolve("team/handbook") == ONE


def test_an_expired_name_is_not_followed(store):
    old = Ref("team/handbook", ONE, 1, 1_600_000_000)
    store.set_ref(old, old.seal(KEY), KEY.public)
    with pytest.raises(TrustError) as refused:
        store.resolve("team/handbook")
    assert refused.value.code == "trust.expired"
    name(store, TWO, 2)
    assert store.resolve("team/handbook") == TWO


def test_no_heap_of_signatures_displaces_a_trusted_one(store, make_artifact, fill):
    artifact = make_artifact(1, 20)
    junk = tuple(Signature("", bytes([number]) * 64) for number in range(MAX_SIGNATURES))
    manifest = artifact.manifest
    fill(store, dataclasses.replace(artifact, envelope=dataclasses.replace(artifact.envelope, signatures=junk)))
    own = manifest.seal(KEY)
    for _ in range(2):
        store.add_signatures(dataclasses.replace(own, signatures=(*junk[:15], *own.signatures)), {KEY.public})
        assert store.artifact(artifact.id).envelope.signers({KEY.public}) == (KEY.public,)
    with pytest.raises(TrustError) as refused:
        store.add_signatures(manifest.seal(OTHER), {KEY.public})
    assert refused.value.code == "trust.untrusted_signer"
    assert store.artifact(artifact.id).envelope.signers({OTHER.public}) == ()
    fill(store, dataclasses.replace(artifact, envelope=manifest.seal(OTHER)))  # computed here, or another's draft
    assert set(store.artifact(artifact.id).envelope.signers({KEY.public, OTHER.public})) == {KEY.public, OTHER.public}


def test_signatures_are_merged_into_a_stored_envelope(store, make_artifact, fill):
    artifact = make_artifact(1, 20)
    fill(store, artifact)
    store.add_signatures(artifact.manifest.seal(OTHER), {OTHER.public})
    store.add_signatures(artifact.manifest.seal(OTHER), {OTHER.public})
    envelope = store.artifact(artifact.id).envelope
    assert set(envelope.signers({artifact.key.public, OTHER.public})) == {artifact.key.public, OTHER.public}
    assert len(envelope.signatures) == 2
    with pytest.raises(NotFoundError) as refused:
        store.add_signatures(make_artifact(2, 20).envelope, {artifact.key.public})
    assert refused.value.code == "store.unknown_artifact"
    assert store.fsck().clean


def test_pins_are_listed_and_forbid_removal(store, root, make_artifact, fill):
    artifact = make_artifact(1, 20)
    fill(store, artifact)
    store.pin(artifact.id)
    store.pin(artifact.id)
    assert store.artifact(artifact.id).pinned
    with Store.open(root) as again:
        with pytest.raises(StoreError) as refused:
            again.remove(artifact.id)
        assert refused.value.code == "store.pinned"
    store.unpin(artifact.id)
    store.unpin(artifact.id)
    assert not store.artifact(artifact.id).pinned
    store.remove(artifact.id)
    for call in (store.pin, store.remove, store.touch, store.artifact):
        with pytest.raises(NotFoundError) as missing:
            call(artifact.id)
        assert missing.value.code == "store.unknown_artifact"
