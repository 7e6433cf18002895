"""The promise for every kind of layer: restored completely, hence continued like a fresh run, bit for bit.

Whatever is restored is also taken away once, to show that its loss would be seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kvsync.engines import Context, Engine, extend_shifted
from kvsync.engines.transformers import load, recurrent
from kvsync.engines.transformers.slots import AttentionSlot
from kvsync.engines.transformers.soundness import check_cache
from kvsync.errors import EngineError
from kvsync.graft import deposit
from kvsync.graft.graft import graft, lookup
from kvsync.pack import ArtifactReader
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.layout import DType, StateGroup
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_kinds import BLOCK, EVERY, KINDS, RECURRENT, KindModels
from tests.engines.tiny_models import some_tokens

SIGNER = SigningKey(bytes(range(32)))
STEPS = 5
DOCUMENT = 5 * BLOCK + 7
GROUPS = {
    "llama 4, chunks of 40": {"chunked": (0, 2), "full": (1, 3)},
    "deepseek v3, latent": {"full": (0, 1, 2)},
    "gemma 3n, two layers read others' keys": {"sliding": (0, 2), "full": (1, 3)},
    "gemma 4, two layers read others' keys": {"sliding": (0, 2), "full": (1, 3)},
    "gpt-oss, attention sinks": {"sliding": (0, 2), "full": (1, 3)},
    "qwen3-next, gated delta rule": {"recurrent": (0, 2), "full": (1, 3)},
    "qwen3.5, gated delta rule": {"recurrent": (0, 2), "full": (1, 3)},
    "granite 4, mamba-2": {"recurrent": (0, 2, 3), "full": (1,)},
    "nemotron-h, mamba-2 and layers without attention": {"recurrent": (0, 2), "full": (1,)},
    "bamba, mamba-2": {"recurrent": (0, 2), "full": (1, 3)},
    "falcon-h1, attention and mamba-2 in every layer": {"full": (0, 2, 4, 6), "recurrent": (1, 3, 5, 7)},
    "kimi linear, latent attention and delta rule": {"recurrent": (0, 2), "full": (1, 3)},
    "inkling, windows and four convolutions in a layer": {
        "sliding": (0, 4),
        "recurrent": (1, 3, 5, 7),
        "full": (2, 6),
    },
    "lfm2, short convolutions": {"recurrent": (0, 2), "full": (1, 3)},
}


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> KindModels:
    return KindModels(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("node") / "store") as opened:
        yield opened


def carry_on(engine: Engine, context: Context, tokens: list[int], schedule: Schedule) -> tuple[object, ...]:
    """Everything a continuation computes."""
    logits = engine.extend(context, tokens, schedule)
    chosen, decoded = engine.decode_greedy(context, logits, STEPS)
    return logits.sha256(), tuple(chosen), decoded.sha256(), engine.state_digest(context)


def reader_of(store: Store, stored: StoredArtifact) -> ArtifactReader:
    return ArtifactReader(store, stored.artifact, stored.manifest.layout, stored.leaves())


@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_numbered_and_grouped_by_what_they_keep(kind: str, kinds: KindModels) -> None:
    groups = kinds.engine(kind).groups
    assert {group.name: group.layers for group in groups} == GROUPS[kind]
    assert (kind in RECURRENT) == any(isinstance(group, StateGroup) for group in groups)


@pytest.mark.parametrize(
    ("dtype", "document", "new"),
    [
        (DType.F32, DOCUMENT, 2 * BLOCK + 5),
        (DType.F32, 6 * BLOCK, 3),
        (DType.F32, 5, 4),
        (DType.BF16, DOCUMENT, BLOCK + 2),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_document_restored_continues_like_a_fresh_one(
    kind: str, dtype: DType, document: int, new: int, kinds: KindModels, store: Store
) -> None:
    ours, theirs = kinds.engines(kind, dtype)
    assert ours.fingerprints == theirs.fingerprints
    tokens, following = some_tokens(document), some_tokens(new, seed=1)
    schedule = ours.schedule.with_boundary(document)
    fresh = ours.new_context()
    last = ours.prefill(fresh, tokens, schedule)
    expected = carry_on(ours, fresh, following, schedule)
    reader = reader_of(store, deposit(store, ours, SIGNER, tokens))
    assert theirs.logits(reader).sha256() == last.sha256()
    assert carry_on(theirs, theirs.restore(reader, document), following, schedule) == expected


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize("kind", KINDS)
def test_full_blocks_restored_continue_like_a_fresh_run_wherever_they_can_be(
    kind: str, dtype: DType, kinds: KindModels, store: Store
) -> None:
    ours, theirs = kinds.engines(kind, dtype)
    document = some_tokens(DOCUMENT, seed=2)
    stored = deposit(store, ours, SIGNER, document)
    layout = stored.manifest.layout
    places = sorted({layout.restorable(position) for position in range(BLOCK, DOCUMENT)})
    if kind in RECURRENT:  # every second block, and behind the last full one
        assert places == [0, 2 * BLOCK, 4 * BLOCK, 5 * BLOCK]
        with pytest.raises(MismatchError) as caught:
            theirs.restore(reader_of(store, stored), BLOCK)
        assert caught.value.code == "mismatch.position"
    else:
        assert places == [BLOCK * block for block in range(1, 6)]
    for place in places[-3:]:
        mine = some_tokens(BLOCK + 5, seed=place)
        fresh = ours.new_context()
        ours.prefill(fresh, document[:place], ours.schedule)
        expected = carry_on(ours, fresh, mine, ours.schedule)
        grafted = theirs.restore(reader_of(store, stored), place)
        assert carry_on(theirs, grafted, mine, theirs.schedule) == expected


def losses(context: Context) -> dict[str, torch.Tensor]:
    """Everything that a cache holds, by name."""
    found = {}
    for index, layer in enumerate(context.cache.layers):
        keys = [(part, getattr(layer, part, None)) for part in ("keys", "values")]
        for part, tensor in (*keys, *recurrent.parts_of(layer)):
            if tensor is not None:
                found[f"{part} of layer {index}"] = tensor
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_of_any_part_of_the_state_would_be_seen(kind: str, kinds: KindModels, store: Store) -> None:
    engine = kinds.engine(kind)
    slots = engine._loaded.shape.slots
    stored = deposit(store, engine, SIGNER, some_tokens(DOCUMENT, seed=3))
    schedule = engine.schedule.with_boundary(DOCUMENT)

    def restored() -> Context:
        return engine.restore(reader_of(store, stored), DOCUMENT)

    right: Digest = engine.extend(restored(), [1, 2, 3], schedule).sha256()
    names = list(losses(restored()))
    assert len(names) == sum(2 if isinstance(slot, AttentionSlot) else len(slot.parts) for slot in slots)
    for name in names:
        damaged = restored()
        losses(damaged)[name].zero_()
        assert engine.extend(damaged, [1, 2, 3], schedule).sha256() != right, name


@pytest.mark.parametrize("kind", ["granite 4, mamba-2", "qwen3-next, gated delta rule"])
def test_one_flipped_bit_of_a_state_would_be_seen(kind: str, kinds: KindModels, store: Store) -> None:
    engine, _ = kinds.engines(kind)
    stored = deposit(store, engine, SIGNER, some_tokens(DOCUMENT, seed=4))
    schedule = engine.schedule.with_boundary(DOCUMENT)
    outcomes = set()
    for part in (None, "conv0", "state0"):
        context = engine.restore(reader_of(store, stored), DOCUMENT)
        if part:
            tensor = dict(recurrent.parts_of(context.cache.layers[0]))[part]
            tensor.view(torch.int32)[(0,) * (tensor.dim() - 1) + (-1,)] ^= 1 << 22
        outcomes.add(carry_on(engine, context, [1, 2, 3], schedule))
    assert len(outcomes) == 3


@pytest.mark.parametrize("kind", ["granite 4, mamba-2", "falcon-h1, attention and mamba-2 in every layer"])
def test_a_graft_begins_at_the_last_snapshot_and_says_how_much_was_shared(
    kind: str, kinds: KindModels, store: Store
) -> None:
    ours, theirs = kinds.engines(kind)
    document = some_tokens(4 * BLOCK + 9, seed=5)
    stored = deposit(store, ours, SIGNER, document)
    asked = [*document[: 3 * BLOCK + 4], *some_tokens(BLOCK, seed=6)]
    match = lookup(store, [SIGNER.public], theirs, asked)
    assert match is not None
    assert (match.position, match.shared) == (EVERY * BLOCK, 3 * BLOCK)
    found = graft(store, [SIGNER.public], theirs, asked)
    assert (found.report.mode, found.report.tokens_grafted, found.report.tokens_shared) == (
        "prefix",
        EVERY * BLOCK,
        3 * BLOCK,
    )
    fresh = ours.new_context()
    ours.prefill(fresh, asked[: found.context.position], ours.schedule)
    rest = list(found.next_tokens)
    assert carry_on(theirs, found.context, rest, found.schedule) == carry_on(ours, fresh, rest, ours.schedule)
    short = [*document[: BLOCK + 3], *some_tokens(BLOCK, seed=7)]
    refused = graft(store, [SIGNER.public], theirs, short, artifact=stored.artifact).report
    assert refused.refused is not None
    assert (refused.mode, refused.refused.code) == ("miss", "mismatch.snapshot")
    assert lookup(store, [SIGNER.public], theirs, short) is None


@pytest.mark.parametrize("kind", ["granite 4, mamba-2", "llama 4, chunks of 40"])
def test_a_longer_document_takes_over_the_blocks_of_a_shorter_one(
    kind: str, kinds: KindModels, store: Store, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine, _ = kinds.engines(kind)
    tokens = some_tokens(6 * BLOCK + 3, seed=8)
    deposit(store, engine, SIGNER, tokens[: 3 * BLOCK + 5])
    steps: list[tuple[int, int]] = []
    long = deposit(
        store, engine, SIGNER, tokens, progress=lambda stage, done, total, unit: steps.append((done, total))
    )
    reused = 2 * BLOCK if kind == "granite 4, mamba-2" else 3 * BLOCK
    assert steps[-1] == (len(tokens) - reused, len(tokens) - reused)
    with Store.open(tmp_path_factory.mktemp("alone") / "store") as alone:
        assert deposit(alone, engine, SIGNER, tokens).artifact == long.artifact


class KilledError(Exception):
    """In place of a kill: ends a deposit between two blocks."""


@pytest.mark.parametrize("blocks", [1, 3, 4, 5])
def test_an_interrupted_deposit_goes_on_from_its_last_snapshot(
    blocks: int, kinds: KindModels, tmp_path_factory: pytest.TempPathFactory
) -> None:
    engine, tokens = kinds.engine("granite 4, mamba-2"), some_tokens(DOCUMENT, seed=9)
    steps: list[int] = []

    def killing(stage: str, done: int, total: int, unit: str) -> None:
        if done >= blocks * BLOCK:  # blocks are written behind the computation: some may be told of together
            raise KilledError

    def counting(stage: str, done: int, total: int, unit: str) -> None:
        steps.append(total)

    with Store.open(tmp_path_factory.mktemp("killed") / "store") as killed:
        with pytest.raises(KilledError):
            deposit(killed, engine, SIGNER, tokens, progress=killing)
        resumed = deposit(killed, engine, SIGNER, tokens, progress=counting)
    kept = (DOCUMENT - steps[-1]) // BLOCK
    assert kept % EVERY == 0
    assert kept > blocks - EVERY  # what was being written when the kill came may be kept, too
    with Store.open(tmp_path_factory.mktemp("alone") / "store") as alone:
        assert deposit(alone, engine, SIGNER, tokens).artifact == resumed.artifact


@pytest.mark.parametrize("kind", ["gemma 4, two layers read others' keys", "granite 4, mamba-2"])
def test_layers_whose_state_is_no_list_of_keys_cannot_be_shifted(kind: str, kinds: KindModels) -> None:
    engine = kinds.engine(kind)
    context = engine.new_context()
    engine.prefill(context, [1, 2, 3], engine.schedule)
    with pytest.raises(EngineError) as caught:
        extend_shifted(engine, context, [4], engine.schedule, 2)
    assert caught.value.code == "engine.shift"


def test_snapshots_of_another_interval_are_another_fingerprint(kinds: KindModels) -> None:
    folder = kinds.folder("granite 4, mamba-2")
    first = kinds.engine("granite 4, mamba-2").fingerprints
    other = load(folder, block_tokens=BLOCK, snapshot_blocks=3).fingerprints
    assert [difference.field for difference in first.compatibility.differences(other.compatibility)] == ["layers"]


def test_the_stack_of_recurrent_layers_is_in_their_fingerprint_only(kinds: KindModels) -> None:
    assert "recurrent_kernels" in kinds.engine("granite 4, mamba-2").fingerprints.numerics.fields
    assert "recurrent_kernels" not in kinds.engine("deepseek v3, latent").fingerprints.numerics.fields


def test_states_that_are_laid_out_otherwise_are_noticed(kinds: KindModels, store: Store) -> None:
    engine = kinds.engine("granite 4, mamba-2")
    slots = engine._loaded.shape.slots

    def cache() -> Any:
        context = engine.new_context()
        engine.prefill(context, some_tokens(20), engine.schedule)
        return context.cache

    check_cache(cache(), slots, 20)
    changes: list[Any] = [
        lambda layer: layer.conv_states.update({0: None}),
        lambda layer: layer.recurrent_states.update({0: layer.recurrent_states[0].half()}),
        lambda layer: layer.recurrent_states.update({0: layer.recurrent_states[0].transpose(2, 3)}),
        lambda layer: layer.has_previous_state.update({0: False}),
    ]
    for change in changes:
        found = cache()
        change(found.layers[0])
        with pytest.raises(EngineError) as caught:
            check_cache(found, slots, 20)
        assert caught.value.code == "engine.restore"
