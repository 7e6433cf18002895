"""One prefix for several rows, and caches that the caller has made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache, QuantizedCache, StaticCache

from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.errors import EngineError
from kvsync.graft import deposit
from kvsync.graft.graft import Graft, graft
from kvsync.store import Store
from kvsync_protocol.digest import Digest, sha256
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_kinds import BLOCK, KindModels
from tests.engines.tiny_models import Models, some_tokens

SIGNER = SigningKey(bytes(range(32)))
ROWS = 3
STEPS = 4
KINDS = ["llama 4, chunks of 40", "granite 4, mamba-2", "falcon-h1, attention and mamba-2 in every layer"]
FAMILIES = ["llama", "gemma3, window of one block", "qwen2 with biases"]


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> KindModels:
    return KindModels(tmp_path_factory.mktemp("kinds"))


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("node") / "store") as opened:
        yield opened


def batched(engine: TransformersEngine, cache: Any, tokens: list[list[int]]) -> list[Digest]:
    """Logits of every call of a batch of continuations: all new tokens at once, then greedy steps."""
    found = []
    ids = torch.tensor(tokens)
    with engine._loaded.determinism.running():
        for _ in range(STEPS):
            out = engine.model(input_ids=ids, cache=cache, use_cache=True)
            assert out.cache is cache
            found.append(sha256(out.logits.contiguous().numpy().tobytes()))
            ids = out.logits[:, -1:].argmax(-1)
    return found


def grafted(engine: TransformersEngine, store: Store, tokens: list[int]) -> Graft:
    found = graft(store, [SIGNER.public], engine, tokens)
    assert found.report.mode == "whole"
    return found


def check_rows(ours: TransformersEngine, theirs: TransformersEngine, store: Store) -> None:
    document = some_tokens(3 * BLOCK + 5)
    rows = [some_tokens(6, seed=row + 1) for row in range(ROWS)]
    fresh = ours.new_context()
    ours.prefill(fresh, document, ours.schedule.with_boundary(len(document)))
    repeated = fresh.repeated(ROWS)
    digest = ours.state_digest(fresh)
    expected = batched(ours, repeated, rows)
    assert ours.state_digest(fresh) == digest
    deposit(store, ours, SIGNER, document)
    found = grafted(theirs, store, document)
    assert batched(theirs, found.repeat(ROWS), rows) == expected
    assert theirs.state_digest(found.context) == digest
    assert batched(theirs, found.repeat(ROWS), [rows[0]] * ROWS) != expected
    assert len(set(expected)) == STEPS


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_batch_continue_one_grafted_prefix_of_any_kind(kind: str, kinds: KindModels, store: Store) -> None:
    check_rows(*kinds.engines(kind), store)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_batch_continue_one_grafted_prefix(family: str, tiny: Models, store: Store) -> None:
    check_rows(tiny.engine(family), tiny.engine(family), store)


def test_transformers_own_repetition_is_the_same_reference(tiny: Models, store: Store) -> None:
    engine, document = tiny.engine("llama"), some_tokens(70)
    deposit(store, engine, SIGNER, document)
    rows = [some_tokens(6, seed=row) for row in range(ROWS)]
    theirs = grafted(engine, store, document).cache
    theirs.batch_repeat_interleave(ROWS)
    assert batched(engine, theirs, rows) == batched(engine, grafted(engine, store, document).repeat(ROWS), rows)


def test_a_batch_without_rows_and_a_context_that_was_moved_are_refused(tiny: Models) -> None:
    engine = tiny.engine("llama")
    context = engine.new_context()
    engine.prefill(context, [1, 2, 3], engine.schedule)
    with pytest.raises(EngineError) as none:
        context.repeated(0)
    assert none.value.code == "engine.batch"
    context.cache.crop(-1)
    for action in (lambda: context.repeated(2), lambda: context.move_into(DynamicCache())):
        with pytest.raises(EngineError) as moved:
            action()
        assert moved.value.code == "engine.context"


@pytest.mark.parametrize("family", ["llama", "gemma3, window of one block"])
def test_an_empty_dynamic_cache_of_the_caller_takes_the_state(family: str, tiny: Models, store: Store) -> None:
    engine, document = tiny.engine(family), some_tokens(150)
    schedule = engine.schedule.with_boundary(len(document))
    deposit(store, engine, SIGNER, document)
    expected = engine.extend(grafted(engine, store, document).context, [1, 2, 3], schedule).sha256()
    for cache in (DynamicCache(), DynamicCache(config=engine.model.config)):
        found = grafted(engine, store, document)
        assert found.into(cache) is cache
        assert found.cache is cache
        assert engine.extend(found.context, [1, 2, 3], schedule).sha256() == expected
        assert cache.get_seq_length() == len(document) + 3


class OwnCache(DynamicCache):  # type: ignore[misc]
    """Looks like the caches that are known."""


def filled(engine: TransformersEngine) -> Any:
    context = engine.new_context()
    engine.prefill(context, [1], engine.schedule)
    return context.cache


CACHES: dict[str, Any] = {
    "StaticCache": lambda engine: StaticCache(config=engine.model.config, max_cache_len=200),
    "QuantizedCache": lambda engine: QuantizedCache("fp8", engine.model.config),
    "EncoderDecoderCache": lambda engine: EncoderDecoderCache(DynamicCache(), DynamicCache()),
    "OwnCache": lambda engine: OwnCache(),
    "list": lambda engine: [],
    "holds another context's state": filled,
}


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_that_keeps_other_bits_is_refused_by_name_and_stays_as_it_is(
    name: str, tiny: Models, store: Store
) -> None:
    engine, document = tiny.engine("llama"), some_tokens(70)
    deposit(store, engine, SIGNER, document)
    found = grafted(engine, store, document)
    mine, before = found.cache, engine.state_digest(found.context)
    cache = CACHES[name](engine)
    with pytest.raises(EngineError) as caught:
        found.into(cache)
    assert caught.value.code == "engine.unsupported_cache"
    assert name in caught.value.message
    assert found.cache is mine
    assert engine.state_digest(found.context) == before
