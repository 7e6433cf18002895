"""Audits of every layer kind: windows that begin inside a block, both precisions, blocks far behind the window."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.forger import consistent, flip
from kvsync.evidence.audit import audit
from kvsync.evidence.selection import Selection
from kvsync.graft import deposit
from kvsync.store import Store
from kvsync_protocol.layout import DType
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_kinds import BLOCK as KIND_BLOCK
from tests.engines.tiny_kinds import KindModels
from tests.engines.tiny_models import BLOCK, Models, some_tokens

KEY, FORGER = SigningKey(bytes([41]) * 32), SigningKey(bytes([42]) * 32)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> KindModels:
    return KindModels(tmp_path_factory.mktemp("more-kinds"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as opened:
        yield opened


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize(
    "family", ["gemma3, window of one block", "mistral, window below a block", "gemma2, soft-capped"]
)
def test_sliding_layers_are_audited_from_what_a_graft_would_restore(
    models: Models, store: Store, family: str, dtype: DType
) -> None:
    engine = models.engine(family, dtype)
    stored = deposit(store, engine, KEY, some_tokens(4 * BLOCK + 9))
    for block in range(5):  # each from a restore of its own
        seed = next(s for s in range(1000) if Selection(1, seed=s).blocks(stored.manifest.layout) == (block,))
        assert audit(store, engine, KEY, stored.artifact, Selection(1, seed=seed)).passed
    forged = consistent(store, engine, stored, FORGER, 2, random.Random(1))
    report = audit(store, engine, KEY, forged.artifact)
    assert ({wrong.block for wrong in report.wrong}, report.exactly) == ({2}, True)


@pytest.mark.parametrize(
    "kind",
    [
        "llama 4, chunks of 40",
        "deepseek v3, latent",
        "gemma 3n, two layers read others' keys",
        "qwen3-next, gated delta rule",
        "granite 4, mamba-2",
        "lfm2, short convolutions",
    ],
)
def test_blocks_without_a_snapshot_before_them_are_audited_from_the_last_one(
    kinds: KindModels, store: Store, kind: str
) -> None:
    """Snapshots stand behind every second block, so an odd block is recomputed together with the one before it."""
    engine = kinds.engine(kind)
    stored = deposit(store, engine, KEY, some_tokens(5 * KIND_BLOCK + 3))
    layout = stored.manifest.layout
    for block in range(layout.blocks):
        seed = next(s for s in range(1000) if Selection(1, seed=s).blocks(layout) == (block,))
        report = audit(store, engine, KEY, stored.artifact, Selection(1, seed=seed))
        assert report.passed
        assert report.blocks == tuple(range(layout.restorable(block * KIND_BLOCK) // KIND_BLOCK, block + 1))
    assert audit(store, engine, KEY, stored.artifact).tokens == layout.tokens
    forged = flip(store, stored, FORGER, 3, random.Random(1))
    report = audit(store, engine, KEY, forged.artifact)
    assert (report.first_wrong, report.exactly) == (3, True)
