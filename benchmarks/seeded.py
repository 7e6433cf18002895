"""Small real artifacts, made from a seed: signed, complete, equal in every process. Random bytes, no arithmetic."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import encode_tokens, tokens_digest
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey

SIGNER = SigningKey(bytes(range(32)))


@dataclass(frozen=True)
class Artifact:
    """Everything a store, a peer or a reader wants to see of one artifact."""

    envelope: Envelope
    manifest: Manifest
    leaves: bytes
    tokens: bytes
    chunks: list[bytes]
    key: SigningKey

    @property
    def id(self) -> ArtifactId:
        return self.manifest.artifact

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(int.from_bytes(self.tokens[i : i + 4], "little") for i in range(0, len(self.tokens), 4))

    @property
    def parts(self) -> tuple[Envelope, Manifest, bytes, bytes]:
        """The arguments of `Store.pull_draft`."""
        return self.envelope, self.manifest, self.leaves, self.tokens


def fingerprints(model: str = "tiny", host: str = "here", canary: str = "c0") -> Fingerprints:
    return Fingerprints(
        Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": model}),
        Fingerprint(FingerprintKind.NUMERICS, {"torch": host, "canary": canary}),
    )


def build_artifact(
    seed: int = 0,
    tokens: int = 40,
    *,
    block_tokens: int = 16,
    key: SigningKey = SIGNER,
    prints: Fingerprints | None = None,
    boundaries: tuple[int, ...] = (),
    heads: int = 1,
    dim: int = 4,
    head: tuple[int, ...] = (),
) -> Artifact:
    """A two-layer artifact with valid block files and random data.

    `head` gives the first token ids; the others follow from `seed`. Equal leading blocks of tokens,
    with equal cuts, give equal chunks, as real prefill does. `heads` and `dim` make chunks larger.
    """
    rng = random.Random(seed)
    ids = (*head, *(rng.randrange(50_000) for _ in range(tokens)))[:tokens]
    prints = prints or fingerprints()
    schedule = Schedule(block_tokens, boundaries).with_boundary(tokens)
    groups = (
        Group("full", LayerKind.FULL, (0,), heads, dim, dim, DType.F32),
        Group("sliding", LayerKind.SLIDING, (1,), heads, dim, dim, DType.F32, window=24),
    )
    layout = Layout(tokens, block_tokens, groups, vocab=32, logits_dtype=DType.F32)
    files: dict[tuple[int, str], bytes] = {}
    chunks = []
    for span in layout.chunks():
        where = (span.block, span.group)
        if where not in files:
            file = layout.file(*where)
            _start, stop = layout.block_range(min(span.block, layout.blocks - 1))
            basis = (ids[:stop], where, schedule.cuts_inside(span.block), heads, dim, prints.numerics.digest.hex)
            data = random.Random(repr(basis)).randbytes(file.size - len(file.header))
            files[where] = file.header + data
        chunks.append(files[where][span.offset : span.offset + span.size])
    table = LeafTable.of([Leaf(sha256(chunk), len(chunk)) for chunk in chunks])
    leaves = table.encode()
    manifest = Manifest(
        TokenRecord(tokens_digest(ids), tokens),
        schedule,
        layout,
        sha256(leaves),
        Tree(table.root, len(table.leaves), table.total_bytes),
        prints,
    )
    return Artifact(manifest.seal(key), manifest, leaves, encode_tokens(ids), chunks, key)
