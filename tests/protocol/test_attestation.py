"""Attestations and divergences: both halves of each codec, what counts, and what a record proves."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.attestation import (
    PAYLOAD_TYPE,
    Attestation,
    Coverage,
    Discrepancy,
    Signed,
    independent,
    ranges,
    read,
)
from kvsync_protocol.digest import ArtifactId, Digest
from kvsync_protocol.divergence import Described, Divergence, equal_blocks, first_divergence, shared_blocks
from kvsync_protocol.errors import MalformedError, MismatchError, ProtocolError, TrustError
from kvsync_protocol.limits import MAX_LIST_ENTRIES
from tests.conftest import Artifact, build_artifact
from tests.protocol.strategies import KEYS, digests, few
from tests.sync.forging import attested, diverging

PUBLIC = [key.public for key in KEYS]


@given(
    digests,
    digests,
    st.sets(st.integers(0, 5000), min_size=1, max_size=60),
    st.booleans(),
    st.none() | st.builds(Discrepancy, st.integers(0, 2**20 - 1), digests),
)
def test_what_is_sealed_is_read_again(
    artifact: Digest, numerics: Digest, blocks: set[int], logits: bool, differs: Discrepancy | None
) -> None:
    made = Attestation.of(ArtifactId(artifact), numerics, blocks, logits=logits, differs=differs)
    assert set(made.audited()) == blocks
    found = Attestation.parse(made.seal(KEYS[0]).verify(PAYLOAD_TYPE, PUBLIC))
    assert found == made


@given(st.lists(st.integers(0, 300)))
def test_ranges_hold_exactly_the_numbers(numbers: list[int]) -> None:
    found = ranges(numbers)
    assert sorted(set(numbers)) == [n for first, end in found for n in range(first, end)]
    assert all(a[1] < b[0] for a, b in pairwise(found))


def test_an_attestation_of_very_many_gaps_is_cut_to_what_a_reader_takes() -> None:
    digest = ArtifactId(Digest(bytes(32)))
    made = Attestation.of(digest, digest, range(0, 10_000, 2), logits=False, differs=None)
    assert len(made.blocks) == MAX_LIST_ENTRIES
    assert Attestation.parse(made.seal(KEYS[0]).verify(PAYLOAD_TYPE, PUBLIC)) == made


def test_one_signers_word_counts_once_and_strangers_not_at_all() -> None:
    artifact = build_artifact()
    layout = artifact.manifest.layout
    said = [attested(artifact, KEYS[0], 0), attested(artifact, KEYS[0], 0, 1), attested(artifact, KEYS[2], 2)]
    found = []
    for envelope in said:
        try:
            found.append(read(envelope, PUBLIC[:2], artifact.manifest))
        except TrustError:
            continue
    coverage = Coverage.of(layout, found)
    assert (coverage.covered, coverage.signers, coverage.percent) == ({0, 1}, (PUBLIC[0],), 66)


def test_the_last_block_counts_only_with_the_logits() -> None:
    artifact = build_artifact()
    layout = artifact.manifest.layout
    part = Attestation.of(artifact.id, artifact.manifest.leaf_table, [2], logits=False, differs=None)
    assert Coverage.of(layout, [Signed(part, (PUBLIC[0],))]) == Coverage(3, frozenset(), ())


def test_what_found_a_difference_covers_nothing_and_refutes_only_under_equal_numerics() -> None:
    artifact = build_artifact()
    here = read(attested(artifact, KEYS[0], leaf=1), PUBLIC, artifact.manifest)
    elsewhere = read(
        attested(artifact, KEYS[0], leaf=1, numerics=artifact.manifest.leaf_table), PUBLIC, artifact.manifest
    )
    assert Coverage.of(artifact.manifest.layout, [here, elsewhere]).covered == set()
    assert here.attestation.refutes(artifact.manifest)
    assert not elsewhere.attestation.refutes(artifact.manifest)


def test_another_artifacts_attestation_says_nothing() -> None:
    one, other = build_artifact(1), build_artifact(2)
    with pytest.raises(MismatchError) as caught:
        read(attested(one, KEYS[0]), PUBLIC, other.manifest)
    assert caught.value.code == "mismatch.attestation"


def test_a_key_that_audits_what_it_alone_has_signed_adds_nothing() -> None:
    artifact = build_artifact()
    said = read(attested(artifact, KEYS[0]), PUBLIC, artifact.manifest)
    assert list(independent([said], [PUBLIC[0]])) == []
    assert list(independent([said], [PUBLIC[0], PUBLIC[1]])) == [said]
    assert list(independent([said], [PUBLIC[1]])) == [said]


def described(artifact: Artifact) -> Described:
    manifest = artifact.manifest
    leaves, tokens = manifest.check_leaves(artifact.leaves), manifest.check_tokens(artifact.tokens)
    return Described(artifact.envelope, manifest, leaves, tokens)


@few
@given(st.integers(1, 70), st.integers(0, 70), st.integers(0, 5), st.booleans())
def test_a_changed_block_is_found_in_whatever_shares_it(length: int, more: int, block: int, longer: bool) -> None:
    ours = build_artifact(3, length)
    theirs = build_artifact(3, length + more, head=ours.token_ids) if longer else ours
    blocks = theirs.manifest.layout.blocks
    wrong = diverging(theirs, min(block, blocks), KEYS[1])
    place = first_divergence(described(ours), described(wrong))
    shared = shared_blocks(described(ours), described(wrong))
    assert place == (min(block, blocks) if min(block, blocks) < shared else None)
    assert first_divergence(described(wrong), described(ours)) == place
    equal = equal_blocks(described(ours), described(wrong))
    assert equal == [b for b in range(shared) if b != place]
    if place is None:
        return
    record = Divergence.of(place, described(ours), described(wrong))
    assert record == Divergence.of(place, described(wrong), described(ours))
    assert Divergence.parse(record.encode()) == record
    record.check()


def test_other_fingerprints_tokens_or_cuts_are_no_divergence() -> None:
    from tests.conftest import fingerprints

    ours = build_artifact(3, 40)
    for other in (
        build_artifact(3, 40, prints=fingerprints(host="there")),
        build_artifact(4, 40),
        build_artifact(3, 40, boundaries=(5,)),
    ):
        assert first_divergence(described(ours), described(diverging(other, 0, KEYS[1]))) is None


@few
@given(st.data())
def test_one_changed_member_of_a_record_proves_nothing_or_the_same(data: st.DataObject) -> None:
    ours = build_artifact(3, 40)
    record = Divergence.of(1, described(ours), described(diverging(ours, 1, KEYS[1])))
    value = json.loads(record.encode())
    side = value["sides"][data.draw(st.integers(0, 1))]
    kind = data.draw(st.sampled_from(["digest", "size", "proof", "tokens", "block"]))
    if kind == "tokens":
        at = data.draw(st.integers(0, len(side["tokens"]) - 1))
        side["tokens"] = side["tokens"][:at] + "B" + side["tokens"][at + 1 :]
    elif kind == "block":
        value["block"] = data.draw(st.integers(0, 5))
    elif kind == "proof":
        side["leaves"][0]["proof"] = side["leaves"][0]["proof"][: data.draw(st.integers(0, 3))]
    else:
        side["leaves"][0][kind] = "sha256:" + "00" * 32 if kind == "digest" else data.draw(st.integers(1, 4 * 2**20))
    try:
        found = Divergence.parse(json.dumps(value).encode())
        found.check()
    except ProtocolError:
        return
    assert found == record


def test_a_record_over_its_limit_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsync_protocol.divergence.MAX_DIVERGENCE_BYTES", 100)
    with pytest.raises(MalformedError) as caught:
        Divergence.parse(b" " * 101)
    assert caught.value.code == "json.size"
