"""Cases for the Merkle tree and the leaf table."""

from __future__ import annotations

import struct

import reference as ref
import tiny
from cases import Cases

CT_DATA = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
CT_ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def merkle() -> Cases:
    c = Cases("SPEC 4.1, RFC 9162 2.1: roots of leaf data, and proofs over leaf hashes")
    for size, known in enumerate(CT_ROOTS):
        c.ok(f"the root of {size} certificate transparency leaves", "root", known, data=CT_DATA[:size])
    _inclusion(c)
    _consistency(c)
    return c


def _inclusion(c: Cases) -> None:
    leaves = [ref.leaf(bytes.fromhex(data)) for data in CT_DATA[:7]]
    a_to_f, j = leaves[:6], leaves[6]
    g, h, i = (ref.node(a_to_f[n], a_to_f[n + 1]) for n in (0, 2, 4))
    k, above = ref.node(g, h), ref.node(i, j)
    b, c_leaf, e, f = a_to_f[1], a_to_f[2], a_to_f[4], a_to_f[5]
    known = {0: [b, h, above], 3: [c_leaf, g, above], 4: [f, j, k], 6: [i, k]}
    root = ref.root(leaves)
    for index, proof in known.items():
        _agree(proof, ref.inclusion(index, leaves))
        c.ok(
            f"RFC 9162 2.1.5: leaf {index} of 7",
            "inclusion",
            leaf=leaves[index],
            index=index,
            size=7,
            proof=proof,
            root=root,
        )
    good = {"leaf": leaves[4], "index": 4, "size": 7, "proof": known[4], "root": root}
    two = ref.root(leaves[:2])
    for size in (2, 3):
        c.ok(
            f"one proof for (tree_size {size}, index {size - 1}): a root binds neither",
            "inclusion",
            leaf=leaves[1],
            index=size - 1,
            size=size,
            proof=[leaves[0]],
            root=two,
        )
    c.ok("one leaf needs no proof", "inclusion", leaf=leaves[0], index=0, size=1, proof=[], root=leaves[0])
    for name, change in {
        "a node short at the end": {"proof": known[4][:-1]},
        "a node short at the start": {"proof": known[4][1:]},
        "a node too many at the end": {"proof": [*known[4], root]},
        "no proof": {"proof": []},
        "nodes in another order": {"proof": [j, f, k]},
        "another leaf": {"leaf": e[::-1]},
        "another index": {"index": 5},
        "an index outside the tree": {"index": 7},
        "a negative index": {"index": -1},
        "a larger tree": {"size": 9},
        "a smaller tree": {"size": 5},
        "an empty tree": {"size": 0, "index": 0},
        "another root": {"root": ref.root(leaves[:6])},
        "65 nodes": {"proof": [f] * 65},
        "an inner node passed off as a leaf": {"leaf": ref.leaf(e + f), "proof": [j, k], "index": 2, "size": 4},
    }.items():
        c.bad(f"inclusion: {name}", "inclusion", "merkle.inclusion", **{**good, **change})


def _consistency(c: Cases) -> None:
    leaves = [ref.leaf(bytes.fromhex(data)) for data in CT_DATA]
    seven = leaves[:7]
    roots = [ref.root(leaves[:n]) for n in range(9)]
    g, i = ref.node(seven[0], seven[1]), ref.node(seven[4], seven[5])
    above = ref.node(i, seven[6])
    k = ref.node(g, ref.node(seven[2], seven[3]))
    known = {3: [seven[2], seven[3], g, above], 4: [above], 6: [i, seven[6], k]}
    for first, proof in known.items():
        _agree(proof, ref.consistency(first, seven))
        c.ok(
            f"RFC 9162 2.1.5: the first {first} of 7",
            "consistency",
            first=first,
            second=7,
            first_root=roots[first],
            second_root=roots[7],
            proof=proof,
        )
    c.ok(
        "equal trees, no proof", "consistency", first=7, second=7, first_root=roots[7], second_root=roots[7], proof=[]
    )
    good = {"first": 3, "second": 7, "first_root": roots[3], "second_root": roots[7], "proof": known[3]}
    c.ok("the same proof claims 8 leaves: a root binds no size", "consistency", **{**good, "second": 8})
    for name, change in {
        "a node short": {"proof": known[3][:-1]},
        "a node too many": {"proof": [*known[3], k]},
        "no proof": {"proof": []},
        "no proof for a power of two": {"first": 4, "first_root": roots[4], "proof": []},
        "another first root": {"first_root": roots[2]},
        "another second root": {"second_root": roots[8]},
        "another first size": {"first": 2},
        "another second size": {"second": 9},
        "nothing is the prefix": {"first": 0, "first_root": roots[0]},
        "the prefix is longer": {"first": 7, "second": 3, "first_root": roots[7], "second_root": roots[3]},
        "equal sizes, other roots": {"first": 7, "proof": []},
        "equal trees with a proof": {"first": 7, "first_root": roots[7]},
    }.items():
        c.bad(f"consistency: {name}", "consistency", "merkle.consistency", **{**good, **change})


def _agree(known: list[bytes], made: list[bytes]) -> None:
    if known != made:
        raise ValueError("the standard's own example and the recursion disagree")


def leaves() -> Cases:
    c = Cases("SPEC 4.2: leaf tables alone, and leaf table, token ids and template against a manifest's payload")
    c.ok(
        "the worked example",
        "leaf_table",
        {"sizes": [len(x) for x in tiny.CHUNKS], "root": tiny.ROOT},
        bytes=tiny.TABLE,
    )
    for name, data in {
        "empty": b"",
        "39 bytes": tiny.TABLE[:39],
        "one byte too many": tiny.TABLE + b"\0",
    }.items():
        c.bad(name, "leaf_table", "leaves.length", bytes=data)
    for name, size in {"a chunk of 0 bytes": 0, "a chunk of 4 MiB + 1": ref.CHUNK + 1, "2^64 - 1": 2**64 - 1}.items():
        c.bad(name, "leaf_table", "leaves.size", bytes=bytes(32) + struct.pack(">Q", size))

    payload = tiny.PAYLOAD.decode()
    c.ok("the signed table", "check_leaves", payload=payload, bytes=tiny.TABLE)
    c.bad(
        "a flipped bit",
        "check_leaves",
        "integrity.leaf_table",
        payload=payload,
        bytes=bytes([tiny.TABLE[0] ^ 1]) + tiny.TABLE[1:],
    )
    c.bad("an entry short", "check_leaves", "integrity.leaf_table", payload=payload, bytes=tiny.TABLE[:-40])
    c.bad(
        "an entry too many",
        "check_leaves",
        "integrity.leaf_table",
        payload=payload,
        bytes=tiny.TABLE + tiny.TABLE[:40],
    )

    entries = [tiny.TABLE[n : n + 40] for n in (0, 40, 80)]
    swapped = entries[1] + entries[0] + entries[2]
    wrong = tiny.statement()
    wrong["subject"][0]["digest"]["sha256"] = ref.sha256(swapped).hex()
    wrong["predicate"]["tree"]["root"] = ref.root([tiny.LEAVES[1], tiny.LEAVES[0], tiny.LEAVES[2]]).hex()
    c.bad(
        "signed, but sizes are not the geometry's",
        "check_leaves",
        "leaves.layout",
        payload=ref.canonical(wrong).decode(),
        bytes=swapped,
    )
    wrong = tiny.statement()
    wrong["predicate"]["tree"]["root"] = ref.root(tiny.LEAVES[:2]).hex()
    c.bad(
        "signed, but the root is another tree's",
        "check_leaves",
        "integrity.root",
        payload=ref.canonical(wrong).decode(),
        bytes=tiny.TABLE,
    )

    c.ok("the signed token ids", "check_tokens", tiny.IDS, payload=payload, bytes=tiny.TOKENS)
    c.bad("another token id", "check_tokens", "integrity.tokens", payload=payload, bytes=b"\2" + tiny.TOKENS[1:])
    c.bad("a token id short", "check_tokens", "integrity.tokens", payload=payload, bytes=tiny.TOKENS[:-4])
    templated = tiny.statement()
    templated["predicate"]["tokens"]["template"] = "sha256:" + "55" * 32
    text = ref.canonical(templated).decode()
    c.ok("the same chat template", "check_template", payload=text, template="sha256:" + "55" * 32)
    c.bad(
        "another chat template", "check_template", "mismatch.template", payload=text, template="sha256:" + "66" * 32
    )
    return c
