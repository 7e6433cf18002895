"""Artifacts as an attacker makes them: real block files, real leaf tables, real signatures, false content.

Everything is computed by real engines and put together by the product's own writer. What is false is what the
caller says: whose tokens, which fingerprints, which geometry, whose key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from kvsync.engines.engine import Engine
from kvsync.pack import ArtifactWriter
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.fingerprint import CANARY_FIELD, Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import DType, LayerKind, Layout
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.manifest import Manifest, TokenRecord, Tree
from kvsync_protocol.prefix import encode_tokens, tokens_digest
from kvsync_protocol.signing import SigningKey
from tests.conftest import Artifact
from tests.sabotage.cast import SIGNER

Block = dict[tuple[int, str], bytes]


@dataclass(frozen=True)
class State:
    """What a prefill leaves: the tensors of every block, and the final logits."""

    blocks: tuple[Block, ...]
    logits: bytes

    def as_f16(self) -> State:
        """The same numbers, of BF16, in the other type of 16 bits."""
        blocks = tuple({slot: _as_f16(data) for slot, data in block.items()} for block in self.blocks)
        return State(blocks, _as_f16(self.logits))


def _as_f16(data: bytes) -> bytes:
    numbers = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).to(torch.float16)
    return numbers.view(torch.uint8).numpy().tobytes()


class _Chunks:
    """Where the writer's chunks go."""

    def __init__(self) -> None:
        self.data: list[bytes] = []

    def append(self, data: memoryview) -> Leaf:
        self.data.append(bytes(data))
        return Leaf(sha256(data), data.nbytes)


def compute(engine: Engine, tokens: Sequence[int]) -> State:
    """The canonical state of `tokens`; computed once, since every attack runs three times."""
    return _computed(engine, tuple(tokens))


@cache
def _computed(engine: Engine, tokens: tuple[int, ...]) -> State:
    blocks: list[Block] = []

    def keep(block: int, tensors: Mapping[tuple[int, str], memoryview]) -> None:
        blocks.append({slot: bytes(data) for slot, data in tensors.items()})

    schedule = engine.schedule.with_boundary(len(tokens))
    logits = engine.prefill(engine.new_context(), tokens, schedule, sink=keep)
    return State(tuple(blocks), bytes(logits.buffer()))


def pack(state: State, layout: Layout) -> list[bytes]:
    """The chunks of a state under a geometry."""
    found = _Chunks()
    writer = ArtifactWriter(found, layout)
    for number, block in enumerate(state.blocks):
        writer.write_block(number, {slot: memoryview(data) for slot, data in block.items()})
    writer.write_logits(memoryview(state.logits))
    return found.data


def describe(
    engine: Engine,
    tokens: Sequence[int],
    chunks: list[bytes],
    *,
    prints: Fingerprints | None = None,
    layout: Layout | None = None,
    template: Digest | None = None,
    key: SigningKey = SIGNER,
) -> Artifact:
    """A signed artifact of these chunks that claims to be `engine`'s computation of `tokens`."""
    table = LeafTable.of([Leaf(sha256(chunk), len(chunk)) for chunk in chunks])
    layout = layout or engine.layout(len(tokens))
    manifest = Manifest(
        TokenRecord(tokens_digest(tokens), len(tokens), None, template),
        engine.schedule.with_boundary(len(tokens)),
        layout,
        sha256(table.encode()),
        Tree(table.root, len(table.leaves), layout.total_bytes),
        prints or engine.fingerprints,
    )
    return Artifact(manifest.seal(key), manifest, table.encode(), encode_tokens(tokens), chunks, key)


def honest(engine: Engine, tokens: Sequence[int], **claims: Any) -> Artifact:
    """What it says it is, unless `claims` say otherwise."""
    return describe(engine, tokens, pack(compute(engine, tokens), engine.layout(len(tokens))), **claims)


def corrupt(engine: Engine, tokens: Sequence[int], key: SigningKey = SIGNER) -> Artifact:
    """One bit of one number of the middle block is wrong, everything behind it as computed, all of it signed."""
    state = compute(engine, tokens)
    middle = len(state.blocks) // 2
    slot, data = max(state.blocks[middle].items())
    blocks = list(state.blocks)
    blocks[middle] = {**blocks[middle], slot: flip(data)}
    chunks = pack(replace(state, blocks=tuple(blocks)), engine.layout(len(tokens)))
    return describe(engine, tokens, chunks, key=key)


def resigned(artifact: Artifact, manifest: Manifest) -> Artifact:
    return replace(artifact, manifest=manifest, envelope=manifest.seal(artifact.key))


def numerics(engine: Engine, **fields: str) -> Fingerprint:
    """The numerics of a host that says this of itself."""
    return Fingerprint(FingerprintKind.NUMERICS, {**engine.fingerprints.numerics.fields, **fields})


def canary(engine: Engine) -> str:
    return engine.fingerprints.numerics.fields[CANARY_FIELD]


def flip(data: bytes) -> bytes:
    """One bit of one exponent in the middle: a number four times as large, or as small."""
    place = len(data) // 8 * 4 + 3
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def claiming(layout: Layout, layers: LayerKind, window: int | None) -> Layout:
    """The same geometry, with every sliding group said to be of this kind and window."""
    groups = tuple(
        replace(group, kind=layers, window=window) if group.kind is LayerKind.SLIDING else group
        for group in layout.groups
    )
    return replace(layout, groups=groups)


def typed(layout: Layout, dtype: DType) -> Layout:
    """The same geometry with another element type of the same size."""
    return replace(layout, groups=tuple(replace(group, dtype=dtype) for group in layout.groups))
