"""Who has signed what: envelopes, keys, fingerprints, refs, where vectors cannot say it."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.digest import ArtifactId, Digest, hash_record, sha256
from kvsync_protocol.envelope import Envelope, Signature
from kvsync_protocol.errors import MalformedError, MismatchError, TrustError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.limits import MAX_FIELD_BYTES, MAX_FINGERPRINT_FIELDS, MAX_RANGES, MAX_SIGNATURES
from kvsync_protocol.manifest import PAYLOAD_TYPE, Manifest, TokenRecord, Tree
from kvsync_protocol.messages import Missing
from kvsync_protocol.ref import Ref
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import _WEAK, PublicKey, SigningKey
from tests.protocol.strategies import KEYS, artifacts_described, few

TYPE = "text/plain"
PUBLIC = [key.public for key in KEYS]


@given(st.sets(st.sampled_from(range(4))), st.sets(st.sampled_from(range(4))), st.integers(1, 4))
def test_distinct_trusted_keys_count_and_nothing_else(signing: set[int], trusted: set[int], threshold: int) -> None:
    envelope = Envelope.seal(TYPE, b"x", *(KEYS[n] for n in signing), *(KEYS[n] for n in signing))
    expected = {PUBLIC[n] for n in signing & trusted}
    keys = [PUBLIC[n] for n in trusted] * 2
    if len(expected) >= threshold:
        verified = envelope.verify(TYPE, keys, threshold=threshold)
        assert set(verified.signers) == expected
        assert len(verified.signers) == len(expected)
        assert verified.payload == b"x"
    else:
        with pytest.raises(TrustError) as caught:
            envelope.verify(TYPE, keys, threshold=threshold)
        assert caught.value.code == "trust.untrusted_signer"


@pytest.mark.parametrize("threshold", [0, -1])
def test_no_threshold_makes_an_unsigned_payload_verified(threshold: int) -> None:
    with pytest.raises(TrustError):
        Envelope.seal(TYPE, b"x", KEYS[0]).verify(TYPE, [], threshold=threshold)


def test_merging_unites_signatures_and_keeps_each_once() -> None:
    one, two = (Envelope.seal(TYPE, b"x", key) for key in KEYS[:2])
    both = one.merged(two)
    assert both == one.merged(both)
    assert set(both.signers(PUBLIC)) == set(PUBLIC[:2])
    with pytest.raises(ValueError, match="different payloads"):
        one.merged(Envelope.seal(TYPE, b"y", KEYS[1]))


def test_a_heap_of_meaningless_signatures_cannot_crowd_out_a_trusted_one() -> None:
    junk = tuple(Signature("", bytes([number]) * 64) for number in range(MAX_SIGNATURES))
    crowded = Envelope(TYPE, b"x", junk)
    merged = crowded.merged(Envelope.seal(TYPE, b"x", KEYS[0]), [PUBLIC[0]])
    assert len(merged.signatures) == MAX_SIGNATURES
    assert merged.signers(PUBLIC) == (PUBLIC[0],)


def test_a_key_that_signs_many_times_counts_once_and_crowds_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ed25519 signatures need not be deterministic: whoever likes makes any number of valid ones."""
    honest, busy = PUBLIC[:2]
    one = Envelope.seal(TYPE, b"x", KEYS[0])
    many = tuple(Signature("", b"by busy " + bytes([number])) for number in range(MAX_SIGNATURES))
    verify = PublicKey.verify

    def also_busy(key: PublicKey, message: bytes, signature: bytes) -> bool:
        return (key == busy and signature.startswith(b"by busy ")) or verify(key, message, signature)

    monkeypatch.setattr(PublicKey, "verify", also_busy)
    merged = one
    for signature in many:
        merged = merged.merged(Envelope(TYPE, b"x", (signature,)), [honest, busy])
    assert set(merged.signers([honest, busy])) == {honest, busy}
    assert len(merged.signatures) == 2
    assert Envelope(TYPE, b"x", many).endorsed([honest, busy]).signatures == many[:1]


def test_only_valid_signatures_of_trusted_keys_are_kept() -> None:
    crowd = tuple(Signature("", bytes([number]) * 64) for number in range(14))
    envelope = Envelope.seal(TYPE, b"x", *KEYS[:2])
    envelope = replace(envelope, signatures=(*crowd, *envelope.signatures))
    assert envelope.endorsed(PUBLIC[1:2]) == Envelope.seal(TYPE, b"x", KEYS[1])
    with pytest.raises(TrustError) as caught:
        envelope.endorsed(PUBLIC[2:3])
    assert caught.value.code == "trust.untrusted_signer"


def test_a_key_of_small_order_would_verify_a_signature_that_nobody_made() -> None:
    identity = b"\x01" + bytes(31)
    forged = identity + bytes(32)
    Ed25519PublicKey.from_public_bytes(identity).verify(forged, b"anything at all")
    with pytest.raises(MalformedError) as caught:
        PublicKey(identity)
    assert caught.value.code == "key.weak"


def test_the_refused_keys_are_exactly_the_points_of_small_order() -> None:
    prime = 2**255 - 19
    order = 2**252 + 27742317777372353535851937790883648493
    d = -121665 * pow(121666, -1, prime) % prime

    def add(one: tuple[int, int], two: tuple[int, int]) -> tuple[int, int]:
        (x1, y1), (x2, y2) = one, two
        k = d * x1 * x2 * y1 * y2
        return (
            (x1 * y2 + x2 * y1) * pow(1 + k, -1, prime) % prime,
            (y1 * y2 + x1 * x2) * pow(1 - k, -1, prime) % prime,
        )

    def times(factor: int, point: tuple[int, int]) -> tuple[int, int]:
        total = (0, 1)
        while factor:
            if factor & 1:
                total = add(total, point)
            point, factor = add(point, point), factor >> 1
        return total

    def point_at(y: int) -> tuple[int, int] | None:
        square = (y * y - 1) * pow(d * y * y + 1, -1, prime) % prime
        x = pow(square, (prime + 3) // 8, prime)
        if (x * x - square) % prime:
            x = x * pow(2, (prime - 1) // 4, prime) % prime
        return None if (x * x - square) % prime else (x, y)

    found: set[int] = set()
    for y in range(2, 60):
        point = point_at(y)
        if point is not None:
            small = times(order, point)  # kills the large part, leaves one of the eight
            found |= {times(n, small)[1] for n in range(8)}
    encodings = {y for small_y in found for y in (small_y, small_y + prime) if y < 2**255}
    assert {y.to_bytes(32, "little") for y in encodings} == _WEAK


def test_an_unsound_signature_length_verifies_nothing() -> None:
    for length in (0, 1, 63, 65):
        assert not PUBLIC[0].verify(b"x", bytes(length))


@pytest.mark.parametrize("seed", [b"", bytes(31), bytes(33)])
def test_a_seed_of_another_length_makes_no_key(seed: bytes) -> None:
    with pytest.raises(MalformedError) as caught:
        SigningKey(seed)
    assert caught.value.code == "key.length"


def fingerprints(numerics: dict[str, str], compatibility: dict[str, str] | None = None) -> Fingerprints:
    return Fingerprints(
        Fingerprint(FingerprintKind.COMPATIBILITY, compatibility or {"weights": "a"}),
        Fingerprint(FingerprintKind.NUMERICS, numerics),
    )


def test_a_refusal_names_the_fields_that_differ_on_either_side() -> None:
    ours = fingerprints({"torch": "2.1", "isa": "avx2", "only_here": ""})
    theirs = fingerprints({"torch": "2.2", "isa": "avx2", "only_there": ""})
    with pytest.raises(MismatchError) as caught:
        ours.check(theirs)
    assert caught.value.fields["differing"] == ["only_here", "only_there", "torch"]
    found = {(d.field, d.ours, d.theirs) for d in ours.numerics.differences(theirs.numerics)}
    assert found == {("torch", "2.1", "2.2"), ("only_here", "", None), ("only_there", None, "")}


def test_an_unknown_way_to_accept_accepts_only_equality() -> None:
    ours, theirs = fingerprints({"canary": "x", "torch": "1"}), fingerprints({"canary": "x", "torch": "2"})
    assert [d.field for d in ours.check(theirs, accept="canary")] == ["torch"]
    with pytest.raises(MismatchError):
        ours.check(theirs, accept="Canary")


def test_changing_the_mapping_it_was_made_of_does_not_change_a_fingerprint() -> None:
    fields = {"weights": "a"}
    made = Fingerprint(FingerprintKind.COMPATIBILITY, fields)
    before = made.digest
    fields["weights"] = "b"
    assert made == Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": "a"})
    assert (made.digest, hash(made)) == (before, hash(before))
    assert made.digest == Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": "a"}).digest


@few
@given(artifacts_described(), st.integers(1, 60))
def test_a_manifest_whose_parts_contradict_each_other_cannot_be_made(
    made: tuple[Manifest, bytes, bytes], number: int
) -> None:
    manifest = made[0]
    for change in (
        {"tokens": replace(manifest.tokens, count=manifest.tokens.count + number)},
        {"layout": replace(manifest.layout, tokens=manifest.layout.tokens + number)},
        {"schedule": replace(manifest.schedule, boundaries=(), block_tokens=manifest.schedule.block_tokens + 61)},
        {"tree": replace(manifest.tree, size=manifest.tree.size + number)},
        {"tree": replace(manifest.tree, total_bytes=manifest.tree.total_bytes - 1)},
    ):
        with pytest.raises(MalformedError) as caught:
            replace(manifest, **change)
        assert caught.value.code in {"manifest.schedule", "manifest.tree"}


@few
@given(artifacts_described())
def test_a_replaced_part_makes_another_artifact(made: tuple[Manifest, bytes, bytes]) -> None:
    sealed = made[0].seal(KEYS[0])
    parsed = Manifest.parse(sealed.verify(PAYLOAD_TYPE, [PUBLIC[0]]))
    other = replace(parsed, leaf_table=sha256(b"another"))
    assert other.artifact != parsed.artifact
    assert other.encode() != parsed.encode()


def test_signatures_of_two_hosts_over_one_artifact_fit_into_one_envelope() -> None:
    manifest = small_manifest({"engine": "x"})
    both = manifest.seal(KEYS[0]).merged(small_manifest({"engine": "x"}).seal(KEYS[1]))
    verified = both.verify(PAYLOAD_TYPE, PUBLIC, threshold=2)
    assert Manifest.parse(verified) == manifest


def test_a_manifest_that_no_reader_would_accept_is_not_written() -> None:
    huge = {f"field{number}": "x" * MAX_FIELD_BYTES for number in range(MAX_FINGERPRINT_FIELDS)}
    with pytest.raises(MalformedError) as caught:
        small_manifest(huge).seal(KEYS[0])
    assert caught.value.code == "manifest.size"


def small_manifest(numerics: dict[str, str]) -> Manifest:

    layout = Layout(4, 4, (Group("full", LayerKind.FULL, (0,), 1, 1, 1, DType.F32),), 3, DType.F32)
    tree = Tree(sha256(b"root"), layout.leaf_count, layout.total_bytes)
    return Manifest(
        TokenRecord(sha256(b"ids"), 4), Schedule(4), layout, sha256(b"table"), tree, fingerprints(numerics)
    )


def test_a_template_is_compared_where_both_sides_have_one() -> None:
    plain = small_manifest({"engine": "x"})
    made = replace(plain, tokens=replace(plain.tokens, template=sha256(b"a")))
    plain.check_template(sha256(b"b"))
    made.check_template(None)
    made.check_template(sha256(b"a"))
    with pytest.raises(MismatchError) as caught:
        made.check_template(sha256(b"b"))
    assert caught.value.code == "mismatch.template"


def test_a_ref_without_expiry_is_always_fresh() -> None:
    ref = Ref("a", ArtifactId(sha256(b"a")), 1)
    ref.check_fresh(2**62)
    with pytest.raises(TrustError):
        replace(ref, expires=5).check_fresh(6)


def test_a_list_of_missing_leaves_is_cut_short_instead_of_outgrowing_its_message() -> None:
    wanted = range(0, 4 * MAX_RANGES, 2)
    found = Missing.of(wanted)
    assert len(found.ranges) == MAX_RANGES
    assert Missing.parse(found.encode(), leaves=4 * MAX_RANGES) == found
    assert list(found.indices()) == list(wanted)[:MAX_RANGES]


@pytest.mark.parametrize("raw", [b"", bytes(31), bytes(33), None, "0" * 32, bytearray(32)])
def test_a_digest_is_32_bytes_and_nothing_else(raw: object) -> None:
    with pytest.raises(MalformedError) as caught:
        Digest(raw)  # type: ignore[arg-type]
    assert caught.value.code == "digest.length"


def test_hashes_do_not_depend_on_the_process() -> None:
    known = hashlib.sha256(b"\0" * 7 + b"\x01t" + b"\0" * 7 + b"\x01a").hexdigest()

    assert hash_record("t", [b"a"]).hex == known
