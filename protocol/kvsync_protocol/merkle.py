"""The RFC 9162 Merkle tree over chunk descriptors: roots, inclusion and consistency proofs (SPEC 4.1).

Knows hashes, not chunks or files. A root alone binds neither the number of leaves nor an index: a
proof that verifies for (tree_size 2, index 1) also verifies for (3, 2). Callers take both numbers
from a signed manifest or from their own request, never from the reply that carries the proof.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import IntegrityError
from kvsync_protocol.limits import MAX_PROOF_NODES

EMPTY_ROOT = Digest(hashlib.sha256(b"").digest())


def leaf_hash(data: bytes) -> Digest:
    """RFC 9162 2.1.1: SHA-256(00 ‖ data)."""
    return Digest(hashlib.sha256(b"\x00" + data).digest())


def chunk_leaf(digest: Digest, size: int) -> Digest:
    """The leaf of a chunk: SHA-256(00 ‖ digest ‖ size as u64 BE). SPEC 4.1."""
    return leaf_hash(digest.raw + struct.pack(">Q", size))


def node_hash(left: Digest, right: Digest) -> Digest:
    """RFC 9162 2.1.1: SHA-256(01 ‖ left ‖ right)."""
    return Digest(hashlib.sha256(b"\x01" + left.raw + right.raw).digest())


class TreeBuilder:
    """Root of a growing list of leaf hashes in O(log n) memory. RFC 9162 2.1.2."""

    def __init__(self) -> None:
        self._stack: list[Digest] = []
        self._size = 0

    @property
    def size(self) -> int:
        return self._size

    def push(self, leaf: Digest) -> None:
        self._stack.append(leaf)
        merges = self._size
        while merges & 1:
            right, left = self._stack.pop(), self._stack.pop()
            self._stack.append(node_hash(left, right))
            merges >>= 1
        self._size += 1

    def root(self) -> Digest:
        if not self._stack:
            return EMPTY_ROOT
        folded = self._stack[-1]
        for left in reversed(self._stack[:-1]):
            folded = node_hash(left, folded)
        return folded


def root(leaves: Sequence[Digest]) -> Digest:
    """MTH of a list of leaf hashes; SHA-256 of the empty string for none."""
    builder = TreeBuilder()
    for leaf in leaves:
        builder.push(leaf)
    return builder.root()


def _split(size: int) -> int:
    """The largest power of two smaller than `size`, for size > 1."""
    return 1 << ((size - 1).bit_length() - 1)


def inclusion_proof(leaves: Sequence[Digest], index: int) -> list[Digest]:
    """PATH(index, leaves), from the leaf upwards. RFC 9162 2.1.3.1.

    Raises:
        ValueError: `index` is not in range; a caller's mistake, not a peer's.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"leaf {index} of {len(leaves)}")
    if len(leaves) == 1:
        return []
    cut = _split(len(leaves))
    if index < cut:
        return [*inclusion_proof(leaves[:cut], index), root(leaves[cut:])]
    return [*inclusion_proof(leaves[cut:], index - cut), root(leaves[:cut])]


def verify_inclusion(leaf: Digest, index: int, size: int, proof: Sequence[Digest], expected: Digest) -> None:
    """Check that `leaf` stands at `index` of the `size` leaves under `expected`. RFC 9162 2.1.3.2.

    Raises:
        IntegrityError: `merkle.inclusion`, whatever is wrong with the proof.
    """
    if not 0 <= index < size or len(proof) > MAX_PROOF_NODES:
        raise _bad_inclusion(index, size)
    fn, sn, computed = index, size - 1, leaf
    for node in proof:
        if sn == 0:
            raise _bad_inclusion(index, size)
        if fn & 1 or fn == sn:
            computed = node_hash(node, computed)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            computed = node_hash(computed, node)
        fn, sn = fn >> 1, sn >> 1
    if sn != 0 or computed != expected:
        raise _bad_inclusion(index, size)


def _bad_inclusion(index: int, size: int) -> IntegrityError:
    return IntegrityError("merkle.inclusion", f"no proof that leaf {index} of {size} is under the signed root")


def consistency_proof(leaves: Sequence[Digest], first: int) -> list[Digest]:
    """PROOF(first, leaves): the first leaves are a prefix of all of them. RFC 9162 2.1.4.1.

    Raises:
        ValueError: `first` is not between 1 and the number of leaves.
    """
    if not 0 < first <= len(leaves):
        raise ValueError(f"prefix of {first} of {len(leaves)}")
    return _subproof(leaves, first, whole=True)


def _subproof(leaves: Sequence[Digest], first: int, *, whole: bool) -> list[Digest]:
    if first == len(leaves):
        return [] if whole else [root(leaves)]
    cut = _split(len(leaves))
    if first <= cut:
        return [*_subproof(leaves[:cut], first, whole=whole), root(leaves[cut:])]
    return [*_subproof(leaves[cut:], first - cut, whole=False), root(leaves[:cut])]


def verify_consistency(
    first: int, second: int, first_root: Digest, second_root: Digest, proof: Sequence[Digest]
) -> None:
    """Check that the tree of `second` leaves extends the tree of `first`. RFC 9162 2.1.4.2.

    Raises:
        IntegrityError: `merkle.consistency`, whatever is wrong with the proof.
    """
    bad = IntegrityError("merkle.consistency", f"no proof that {second} leaves extend the first {first}")
    if not 0 < first <= second or len(proof) > MAX_PROOF_NODES:
        raise bad
    if first == second:
        if proof or first_root != second_root:
            raise bad
        return
    path = list(proof)
    if not path:
        raise bad
    if first & (first - 1) == 0:
        path.insert(0, first_root)
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    fr = sr = path[0]
    for node in path[1:]:
        if sn == 0:
            raise bad
        if fn & 1 or fn == sn:
            fr, sr = node_hash(node, fr), node_hash(node, sr)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            sr = node_hash(sr, node)
        fn, sn = fn >> 1, sn >> 1
    if fr != first_root or sr != second_root or sn != 0:
        raise bad
