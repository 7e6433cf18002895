"""The promise, on small models of every supported family: a restored context continues like a fresh one, bit for bit.

The graft's side is another engine than the one that computed, and all bytes go through a real store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers.cache_utils import DynamicLayer

from kvsync.engines import Context, Engine
from kvsync.engines.transformers import load
from kvsync.errors import EngineError
from kvsync.graft import deposit
from kvsync.pack import ArtifactReader
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import IntegrityError, MismatchError
from kvsync_protocol.layout import DType
from kvsync_protocol.schedule import Schedule
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_models import BLOCK, FAMILIES, Models, some_tokens

SIGNER = SigningKey(bytes(range(32)))
STEPS = 8


@dataclass(frozen=True)
class Node:
    """A store and where its files lie."""

    root: Path
    store: Store

    def chunk(self, stored: StoredArtifact, index: int) -> Path:
        (path,) = self.root.rglob(stored.leaves().leaves[index].digest.hex)
        return path


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    root = tmp_path_factory.mktemp("node") / "store"
    with Store.open(root) as opened:
        yield Node(root, opened)


@pytest.fixture
def store(node: Node) -> Store:
    return node.store


@dataclass(frozen=True)
class Outcome:
    """Digests of everything a continuation computed."""

    logits: Digest
    tokens: list[int]
    decoded: Digest
    state: Digest


def carry_on(engine: Engine, context: Context, tokens: list[int], schedule: Schedule) -> Outcome:
    logits = engine.extend(context, tokens, schedule)
    chosen, decoded = engine.decode_greedy(context, logits, STEPS)
    return Outcome(logits.sha256(), chosen, decoded.sha256(), engine.state_digest(context))


def reader_of(store: Store, stored: StoredArtifact) -> ArtifactReader:
    return ArtifactReader(store, stored.artifact, stored.manifest.layout, stored.leaves())


WHOLE = {
    "shorter than a block": (37, 5),
    "one token, then one token": (1, 1),
    "exactly one block": (BLOCK, 1),
    "inside the third block": (2 * BLOCK + 29, 12),
    "one before a cut": (3 * BLOCK - 1, 3),
    "several windows long, several blocks to come": (5 * BLOCK + 7, 2 * BLOCK + 9),
}


LONGER = ("inside the third block", "several windows long, several blocks to come")


@pytest.mark.parametrize(
    ("dtype", "length"), [*((DType.F32, length) for length in WHOLE), *((DType.BF16, length) for length in LONGER)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_document_restored_continues_like_a_fresh_one(
    family: str, dtype: DType, length: str, tiny: Models, store: Store
) -> None:
    document, new = WHOLE[length]
    tokens, following = some_tokens(document), some_tokens(new, seed=1)
    fresh_engine, graft_engine = (
        tiny.engine(family, dtype),
        load(tiny.folder(family), dtype=dtype, block_tokens=BLOCK),
    )
    schedule = fresh_engine.schedule.with_boundary(document)
    fresh = fresh_engine.new_context()
    last = fresh_engine.prefill(fresh, tokens, schedule)
    expected = carry_on(fresh_engine, fresh, following, schedule)

    reader = reader_of(store, deposit(store, fresh_engine, SIGNER, tokens))
    assert graft_engine.logits(reader).sha256() == last.sha256()
    grafted = graft_engine.restore(reader, document)
    assert grafted.position == document
    assert carry_on(graft_engine, grafted, following, schedule) == expected


@pytest.mark.parametrize(("dtype", "blocks"), [(DType.F32, 1), (DType.F32, 4), (DType.BF16, 2)])
@pytest.mark.parametrize("family", FAMILIES)
def test_full_blocks_of_another_document_restored_continue_like_a_fresh_run(
    family: str, dtype: DType, blocks: int, tiny: Models, store: Store
) -> None:
    engine = tiny.engine(family, dtype)
    document, shared = some_tokens(4 * BLOCK + 33, seed=2), blocks * BLOCK
    mine = [*document[:shared], *some_tokens(BLOCK + 21, seed=3 + blocks)]
    fresh = engine.new_context()
    engine.prefill(fresh, mine[:shared], engine.schedule)
    expected = carry_on(engine, fresh, mine[shared:], engine.schedule)

    reader = reader_of(store, deposit(store, engine, SIGNER, document))
    grafted = engine.restore(reader, shared)
    assert carry_on(engine, grafted, mine[shared:], engine.schedule) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_decoding_from_stored_final_logits_equals_decoding_after_a_fresh_prefill(
    family: str, tiny: Models, store: Store
) -> None:
    engine, tokens = tiny.engine(family), some_tokens(BLOCK + 17, seed=9)
    schedule = engine.schedule.with_boundary(len(tokens))
    fresh = engine.new_context()
    expected = engine.decode_greedy(fresh, engine.prefill(fresh, tokens, schedule), STEPS)
    reader = reader_of(store, deposit(store, engine, SIGNER, tokens))
    found = engine.decode_greedy(engine.restore(reader, len(tokens)), engine.logits(reader), STEPS)
    assert (found[0], found[1].sha256()) == (expected[0], expected[1].sha256())


@pytest.mark.parametrize("family", ["llama", "gemma3, window of one block"])
def test_a_conversation_grown_turn_by_turn_equals_its_fresh_computation(
    family: str, tiny: Models, store: Store
) -> None:
    """Earlier ends stay cuts, inside one block and in several."""
    engine = tiny.engine(family)
    turns, tokens = [30, 45, BLOCK + 10, 3 * BLOCK + 5], some_tokens(3 * BLOCK + 5, seed=4)
    schedule = engine.schedule
    for end in turns:
        schedule = schedule.with_boundary(end)
    fresh = engine.new_context()
    engine.prefill(fresh, tokens, schedule)
    following = some_tokens(9, seed=5)
    expected = carry_on(engine, fresh, following, schedule)

    stored = deposit(store, engine, SIGNER, tokens, boundaries=turns[:-1])
    assert stored.manifest.schedule == schedule
    grafted = engine.restore(reader_of(store, stored), len(tokens))
    assert carry_on(engine, grafted, following, schedule) == expected


def test_a_longer_document_shares_its_leading_chunks_with_a_shorter_one(llama: Engine, store: Store) -> None:
    tokens = some_tokens(3 * BLOCK + 5, seed=6)
    long = deposit(store, llama, SIGNER, tokens)
    short = deposit(store, llama, SIGNER, tokens[: 2 * BLOCK + 1])
    full = short.manifest.layout.full_leaves
    assert full > 0
    assert short.leaves().leaves[:full] == long.leaves().leaves[:full]


@pytest.mark.parametrize("threads", [1, 2])
def test_both_sides_agree_under_another_thread_count(threads: int, tiny: Models, store: Store) -> None:
    family, tokens, following = "gemma3, window of one block", some_tokens(150, seed=7), some_tokens(20, seed=8)
    engine = load(tiny.folder(family), threads=threads, block_tokens=BLOCK)
    schedule = engine.schedule.with_boundary(len(tokens))
    fresh = engine.new_context()
    engine.prefill(fresh, tokens, schedule)
    expected = carry_on(engine, fresh, following, schedule)
    reader = reader_of(store, deposit(store, engine, SIGNER, tokens))
    assert carry_on(engine, engine.restore(reader, len(tokens)), following, schedule) == expected


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    mode = path.stat().st_mode
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(mode)


@pytest.mark.parametrize("family", ["llama", "mistral, window below a block"])
def test_a_flipped_bit_in_any_needed_chunk_refuses_the_restore_and_touches_nothing(
    family: str, tiny: Models, node: Node
) -> None:
    engine, tokens = tiny.engine(family), some_tokens(3 * BLOCK + 5, seed=11)
    live = engine.new_context()
    engine.prefill(live, tokens[:70], engine.schedule)
    before = engine.state_digest(live)
    stored = deposit(node.store, engine, SIGNER, tokens)
    needed = {span.index for span in stored.manifest.layout.chunks_for_graft(len(tokens), logits=False)}
    assert needed
    for index in range(stored.manifest.layout.leaf_count):
        path = node.chunk(stored, index)
        good, mode = path.read_bytes(), path.stat().st_mode
        flip(path)
        if index in needed:
            with pytest.raises(IntegrityError) as caught:
                engine.restore(reader_of(node.store, stored), len(tokens))
            assert caught.value.code == "integrity.chunk"
            assert caught.value.fields["chunk"] == index
        else:
            engine.restore(reader_of(node.store, stored), len(tokens))
        path.unlink(missing_ok=True)  # a bad chunk that was noticed is set aside
        path.write_bytes(good)
        path.chmod(mode)
    assert engine.state_digest(live) == before
    assert engine.restore(reader_of(node.store, stored), len(tokens)).position == len(tokens)


def test_an_artifact_of_another_layout_or_position_is_refused(tiny: Models, node: Node) -> None:
    llama, sliding = tiny.engine("llama"), tiny.engine("mistral, window below a block")
    stored = deposit(node.store, llama, SIGNER, some_tokens(2 * BLOCK + 3, seed=12))
    for engine, position, code in (
        (sliding, BLOCK, "mismatch.layout"),
        (llama, BLOCK + 1, "mismatch.position"),
        (llama, 3 * BLOCK, "mismatch.position"),
    ):
        with pytest.raises(MismatchError) as caught:
            engine.restore(reader_of(node.store, stored), position)
        assert caught.value.code == code


def test_the_outcome_tells_a_single_wrong_bit_of_state(tiny: Models, node: Node) -> None:
    """Guards the tests above: state that differs is seen in what they compare."""
    engine, tokens = tiny.engine("gemma3, window of one block"), some_tokens(BLOCK + 30, seed=13)
    reader = reader_of(node.store, deposit(node.store, engine, SIGNER, tokens))
    schedule = engine.schedule.with_boundary(len(tokens))
    outcomes = []
    for wrong in (False, True):
        context = engine.restore(reader, len(tokens))
        if wrong:
            context.cache.layers[0].values.view(torch.int32)[0, 0, -1, 0] ^= 1 << 22
        outcomes.append(carry_on(engine, context, [1, 2, 3], schedule))
    assert outcomes[0].logits != outcomes[1].logits
    assert outcomes[0].decoded != outcomes[1].decoded
    assert outcomes[0].state != outcomes[1].state


def test_a_layer_that_does_not_take_its_state_makes_the_restore_fail(
    tiny: Models, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a change of transformers that nobody here has seen."""
    engine, tokens = tiny.engine("llama"), some_tokens(BLOCK + 3, seed=14)
    reader = reader_of(node.store, deposit(node.store, engine, SIGNER, tokens))
    monkeypatch.setattr(DynamicLayer, "lazy_initialization", lambda self, keys, values: None)
    with pytest.raises(EngineError) as caught:
        engine.restore(reader, len(tokens))
    assert caught.value.code == "engine.restore"
