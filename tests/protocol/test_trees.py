"""Every tree below 40 leaves: what is generated verifies, and nothing near it does."""

from __future__ import annotations

import hashlib

import pytest

from kvsync_protocol import merkle
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.errors import IntegrityError

LEAVES = [merkle.leaf_hash(b"%d" % number) for number in range(40)]
ROOTS = [merkle.root(LEAVES[:size]) for size in range(41)]
STRANGER = sha256(b"stranger")


def included(index: int, size: int, proof: list[Digest], root: Digest, leaf: Digest | None = None) -> bool:
    try:
        merkle.verify_inclusion(leaf or LEAVES[index], index, size, proof, root)
    except IntegrityError as error:
        return error.code != "merkle.inclusion"
    return True


def consistent(first: int, second: int, proof: list[Digest], roots: tuple[Digest, Digest] | None = None) -> bool:
    before, after = roots or (ROOTS[first], ROOTS[second])
    try:
        merkle.verify_consistency(first, second, before, after, proof)
    except IntegrityError as error:
        return error.code != "merkle.consistency"
    return True


def test_the_root_of_no_leaf_is_the_digest_of_nothing() -> None:
    assert ROOTS[0] == merkle.EMPTY_ROOT == Digest(hashlib.sha256(b"").digest())


def test_a_growing_tree_has_the_root_of_its_leaves_at_every_size() -> None:
    builder = merkle.TreeBuilder()
    for size, leaf in enumerate(LEAVES, 1):
        builder.push(leaf)
        assert (builder.size, builder.root()) == (size, ROOTS[size])


def test_no_two_sizes_share_a_root_and_odd_leaves_are_not_duplicated() -> None:
    assert len(set(ROOTS)) == 41
    assert merkle.root([*LEAVES[:6], *LEAVES[4:6]]) != ROOTS[6]


@pytest.mark.parametrize("size", range(1, 40))
def test_every_inclusion_proof_verifies_and_no_shorter_longer_or_altered_one(size: int) -> None:
    for index in range(size):
        proof = merkle.inclusion_proof(LEAVES[:size], index)
        assert included(index, size, proof, ROOTS[size])
        assert not included(index, size, [*proof, STRANGER], ROOTS[size])
        assert not included(index, size, proof, ROOTS[size], STRANGER)
        assert not included(index, size, proof, STRANGER)
        for at in range(len(proof)):
            assert not included(index, size, proof[:at] + proof[at + 1 :], ROOTS[size])
            assert not included(index, size, [*proof[:at], STRANGER, *proof[at + 1 :]], ROOTS[size])


@pytest.mark.parametrize("size", range(1, 40))
def test_no_leaf_verifies_at_another_index_of_the_same_tree(size: int) -> None:
    for index in range(size):
        proof = merkle.inclusion_proof(LEAVES[:size], index)
        wrong = [other for other in range(size) if other != index]
        assert not any(included(other, size, proof, ROOTS[size], LEAVES[index]) for other in wrong)


@pytest.mark.parametrize("second", range(1, 40))
def test_every_consistency_proof_verifies_and_no_shorter_longer_or_altered_one(second: int) -> None:
    for first in range(1, second + 1):
        proof = merkle.consistency_proof(LEAVES[:second], first)
        assert consistent(first, second, proof)
        assert not consistent(first, second, [*proof, STRANGER])
        assert not consistent(first, second, proof, (STRANGER, ROOTS[second]))
        assert not consistent(first, second, proof, (ROOTS[first], STRANGER))
        for at in range(len(proof)):
            assert not consistent(first, second, proof[:at] + proof[at + 1 :])
            assert not consistent(first, second, [*proof[:at], STRANGER, *proof[at + 1 :]])


def test_a_proof_is_never_longer_than_the_depth_and_one() -> None:
    for size in range(1, 40):
        depth = (size - 1).bit_length()
        assert all(len(merkle.inclusion_proof(LEAVES[:size], index)) <= depth for index in range(size))
        assert all(len(merkle.consistency_proof(LEAVES[:size], first)) <= depth + 1 for first in range(1, size + 1))


def test_a_root_binds_neither_size_nor_index_so_both_are_signed() -> None:
    for index, size in ((1, 2), (2, 3)):
        assert included(index, size, [LEAVES[0]], ROOTS[2], LEAVES[1])


@pytest.mark.parametrize(("index", "size"), [(0, 0), (-1, 3), (3, 3), (0, -1)])
def test_proofs_for_places_outside_the_tree_are_refused_on_both_sides(index: int, size: int) -> None:
    assert not included(index, size, [], ROOTS[1], LEAVES[0])
    with pytest.raises(ValueError, match="leaf"):
        merkle.inclusion_proof(LEAVES[: max(size, 0)], index)


@pytest.mark.parametrize("first", [0, 41])
def test_no_proof_is_made_for_an_impossible_prefix(first: int) -> None:
    with pytest.raises(ValueError, match="prefix"):
        merkle.consistency_proof(LEAVES, first)
