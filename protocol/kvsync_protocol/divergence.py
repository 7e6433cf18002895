"""Divergences: two signed artifacts that name one computation and have other bytes for it (SPEC 7.5).

A record is evidence that anyone can check without asking anybody: both envelopes, the token ids that the
prefix keys are made of, and the leaves of the block in question with proofs that the signed trees have them.
Which side is wrong a record cannot say; recomputing the block can.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile, zip_longest

from kvsync_protocol import merkle, strictjson
from kvsync_protocol.digest import ArtifactId, Digest, PrefixKey, sha256
from kvsync_protocol.envelope import Envelope, VerifiedPayload
from kvsync_protocol.errors import IntegrityError, MalformedError
from kvsync_protocol.layout import ChunkSpan, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import (
    MAX_CHUNK_BYTES,
    MAX_DIVERGENCE_BYTES,
    MAX_ENVELOPE_BYTES,
    MAX_LIST_ENTRIES,
    MAX_PROOF_NODES,
    MAX_TOKEN_BYTES,
    MAX_TOKENS,
)
from kvsync_protocol.manifest import Manifest
from kvsync_protocol.prefix import block_keys, start_key

Named = dict[tuple[str, int], Leaf]
"""Leaves of a block by group and offset in its file."""


@dataclass(frozen=True)
class Described:
    """An artifact's description, all of it checked against the manifest. `envelope`'s signatures are not judged."""

    envelope: Envelope
    manifest: Manifest
    leaves: LeafTable
    tokens: tuple[int, ...]

    def keys(self) -> Iterator[PrefixKey]:
        """The prefix keys of all its blocks."""
        return block_keys(start_key(self.manifest.fingerprints), self.tokens, self.manifest.schedule)

    @cached_property
    def spans(self) -> list[list[ChunkSpan]]:
        return block_spans(self.manifest.layout)

    def named(self, blocks: int) -> list[Named]:
        """Leaves of the first `blocks` blocks, one block each; the final logits are the block after the last."""
        found: list[Named] = [{} for _ in range(blocks)]
        for span in takewhile(lambda span: span.block < blocks, self.manifest.layout.chunks()):
            found[span.block][span.group, span.offset] = self.leaves.leaves[span.index]
        return found


def block_spans(layout: Layout) -> list[list[ChunkSpan]]:
    """The chunks of every block, and after the last block's those of the final logits."""
    found: list[list[ChunkSpan]] = [[] for _ in range(layout.blocks + 1)]
    for span in layout.chunks():
        found[span.block].append(span)
    return found


def shared_blocks(one: Described, other: Described) -> int:
    """Leading blocks that both compute alike, the final logits counted as a block where all are shared."""
    count = 0
    for ours, theirs in zip_longest(one.keys(), other.keys()):
        if ours != theirs:
            return count
        count += 1
    return count + 1


def first_divergence(one: Described, other: Described) -> int | None:
    """The first block of one prefix key and two sets of bytes; the number of blocks for the final logits."""
    shared = shared_blocks(one, other)
    sides = zip(one.named(shared), other.named(shared), strict=True)
    return next((block for block, (ours, theirs) in enumerate(sides) if _differ(ours, theirs)), None)


def equal_blocks(one: Described, other: Described) -> list[int]:
    """Blocks of `one` that `other` computes alike and for all of which it has the same bytes."""
    shared = shared_blocks(one, other)
    sides = zip(one.named(shared), other.named(shared), strict=True)
    return [block for block, (ours, theirs) in enumerate(sides) if ours.items() <= theirs.items()]


def _named(spans: Sequence[ChunkSpan], leaves: Sequence[Leaf]) -> Named:
    return {(span.group, span.offset): leaf for span, leaf in zip(spans, leaves, strict=True)}


def _differ(ours: Named, theirs: Named) -> bool:
    """A snapshot that stands where one of the artifacts ends is in that one only, and says nothing."""
    return any(theirs.get(place, leaf) != leaf for place, leaf in ours.items())


@dataclass(frozen=True, slots=True)
class ProvenLeaf:
    """A leaf of the block, and the proof that the signed tree has it at its place."""

    leaf: Leaf
    proof: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """What one signer has signed about the block."""

    envelope: Envelope
    tokens: bytes
    leaves: tuple[ProvenLeaf, ...]

    @property
    def artifact(self) -> ArtifactId:
        return ArtifactId(sha256(self.envelope.payload))


@dataclass(frozen=True)
class Divergence:
    """Both sides, in the order of their artifact ids. `Divergence.parse(d.encode()) == d`."""

    block: int
    sides: tuple[Side, Side]

    @classmethod
    def of(cls, block: int, one: Described, other: Described) -> Divergence:
        first, second = sorted((_side(block, one), _side(block, other)), key=lambda side: side.artifact)
        return cls(block, (first, second))

    @property
    def name(self) -> Digest:
        """The same for the same two artifacts, whoever noticed and whoever else has signed since."""
        return sha256(b"kvsync/divergence/1" + b"".join(side.artifact.raw for side in self.sides))

    def encode(self) -> bytes:
        return strictjson.dumps({"block": self.block, "sides": [_side_json(side) for side in self.sides]})

    @classmethod
    def parse(cls, data: bytes) -> Divergence:
        """Read a record; `check` tells whether it proves anything.

        Raises:
            MalformedError: `json.*`, `envelope.*`, `digest.syntax`, `divergence.*`.
        """
        value = strictjson.loads(data, limit=MAX_DIVERGENCE_BYTES, what="the divergence")
        fields = strictjson.Fields(value, "divergence")
        block = fields.integer("block", 0, MAX_TOKENS)
        sides = [_parse_side(entry) for entry in fields.array("sides", limit=2)]
        fields.done()
        if len(sides) != 2 or not sides[0].artifact < sides[1].artifact:
            raise MalformedError("divergence.range", "a divergence has two sides, in the order of their ids")
        return cls(block, (sides[0], sides[1]))

    def check(self) -> tuple[Manifest, Manifest]:
        """Both manifests, once it is shown that they name one computation of this block and other bytes.

        Whose signatures count is left to the caller.

        Raises:
            ProtocolError: as `Manifest.parse` and `Manifest.check_tokens`.
            IntegrityError: `integrity.divergence` when the record does not prove what it says;
                `merkle.inclusion`.
        """
        parsed = [_checked(side, self.block) for side in self.sides]
        (one, its_key, its_leaves), (other, other_key, other_leaves) = parsed
        if its_key != other_key:
            raise _unproven("the two sides are different computations")
        if not _differ(its_leaves, other_leaves):
            raise _unproven("both sides have the same bytes")
        return one, other


def _side(block: int, described: Described) -> Side:
    hashes = described.leaves.hashes
    leaves = tuple(
        ProvenLeaf(described.leaves.leaves[span.index], tuple(merkle.inclusion_proof(hashes, span.index)))
        for span in block_spans(described.manifest.layout)[block]
    )
    tokens = b"".join(token.to_bytes(4, "little") for token in described.tokens)
    return Side(described.envelope, tokens, leaves)


def _checked(side: Side, block: int) -> tuple[Manifest, tuple[PrefixKey, bool], Named]:
    """The manifest; what is computed, by prefix key and whether the logits after it are meant; the leaves."""
    manifest = Manifest.parse(VerifiedPayload(side.envelope.payload_type, side.envelope.payload, ()))
    tokens = manifest.check_tokens(side.tokens)
    if block > manifest.layout.blocks:
        raise _unproven("a side does not have the block")
    spans = block_spans(manifest.layout)[block]
    if len(spans) != len(side.leaves):
        raise _unproven("a side does not show all leaves of the block")
    for span, proven in zip(spans, side.leaves, strict=True):
        leaf = merkle.chunk_leaf(proven.leaf.digest, proven.leaf.size)
        merkle.verify_inclusion(leaf, span.index, manifest.tree.size, proven.proof, manifest.tree.root)
    logits = block == manifest.layout.blocks
    keys = list(block_keys(start_key(manifest.fingerprints), tokens, manifest.schedule))
    return manifest, (keys[block - logits], logits), _named(spans, [proven.leaf for proven in side.leaves])


def _unproven(text: str) -> IntegrityError:
    return IntegrityError("integrity.divergence", f"the record proves no divergence: {text}")


def _side_json(side: Side) -> dict[str, object]:
    return {
        "envelope": side.envelope.encode().decode(),
        "tokens": base64.b64encode(side.tokens).decode(),
        "leaves": [
            {
                "digest": str(proven.leaf.digest),
                "size": proven.leaf.size,
                "proof": [str(node) for node in proven.proof],
            }
            for proven in side.leaves
        ],
    }


def _parse_side(entry: object) -> Side:
    fields = strictjson.Fields(entry, "divergence")
    envelope = Envelope.parse(fields.string("envelope", limit=MAX_ENVELOPE_BYTES).encode())
    text = fields.string("tokens", limit=2 * MAX_TOKEN_BYTES)
    leaves = tuple(_parse_leaf(leaf) for leaf in fields.array("leaves", limit=MAX_LIST_ENTRIES))
    fields.done()
    try:
        tokens = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedError("divergence.base64", "the token ids are not base64") from error
    if base64.b64encode(tokens).decode() != text:
        raise MalformedError("divergence.base64", "the token ids are base64 in another than its one spelling")
    return Side(envelope, tokens, leaves)


def _parse_leaf(entry: object) -> ProvenLeaf:
    fields = strictjson.Fields(entry, "divergence")
    leaf = Leaf(fields.digest("digest"), fields.integer("size", 1, MAX_CHUNK_BYTES))
    nodes: Sequence[object] = fields.array("proof", limit=MAX_PROOF_NODES)
    fields.done()
    return ProvenLeaf(leaf, tuple(map(Digest.parse, nodes)))
