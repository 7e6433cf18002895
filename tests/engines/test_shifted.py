"""Shifted positions: near the canonical logits and never equal to them, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import CohereConfig

from kvsync.engines import extend_shifted
from kvsync.engines.transformers import load
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.engines.transformers.logits import TensorLogits
from kvsync.errors import EngineError
from kvsync_protocol.layout import DType
from tests.engines.tiny_models import BLOCK, SHAPE, Models, save_model, some_tokens

HELD, NEW = BLOCK + 9, 5


def outcome(engine: TransformersEngine, shift: int) -> tuple[object, object]:
    """Logits of the same continuation at its own positions and `shift` later."""
    tokens = some_tokens(HELD + NEW)
    contexts = engine.new_context(), engine.new_context()
    for context in contexts:
        engine.prefill(context, tokens[:HELD], engine.schedule)
    own = engine.extend(contexts[0], tokens[HELD:], engine.schedule)
    return own, extend_shifted(engine, contexts[1], tokens[HELD:], engine.schedule, shift)


@pytest.mark.parametrize("shift", [1, 7, 256])
@pytest.mark.parametrize(
    "family", ["llama", "qwen3 with q and k norms", "gemma3, window of one block", "mistral, window below a block"]
)
def test_a_shift_is_near_and_not_equal(tiny: Models, family: str, shift: int) -> None:
    own, shifted = outcome(tiny.engine(family), shift)
    assert own.sha256() != shifted.sha256()
    assert 0 < own.max_abs(shifted) < 0.02
    assert 0 <= own.kl(shifted) < 1e-4
    assert own.argmax() == shifted.argmax()


def test_a_shift_in_bf16_is_farther_away(tiny: Models) -> None:
    own, shifted = outcome(tiny.engine("llama", DType.BF16), 7)
    assert 1e-3 < own.max_abs(shifted) < 2


def test_without_turned_keys_it_would_be_far_away(tiny: Models) -> None:
    """The distances above are rounding: a model whose keys stay where they were answers something else."""
    engine, tokens = tiny.engine("llama"), some_tokens(HELD + NEW)
    own, _ = outcome(engine, 256)
    context = engine.new_context()
    engine.prefill(context, tokens[:HELD], engine.schedule)
    with engine._running(context, tokens[HELD:], engine.schedule) as (cache, start):
        moved = TensorLogits(engine._forward(cache, tokens[HELD:], keep=0, first=start + 256))
    assert own.max_abs(moved) > 0.5


def test_positions_beyond_the_model_s_are_refused(tiny: Models) -> None:
    with pytest.raises(EngineError, match="more than the model's 1024") as caught:
        outcome(tiny.engine("llama"), 1024)
    assert caught.value.code == "engine.shift"


def test_a_scaling_that_is_no_constant_turn_is_refused(tiny: Models) -> None:
    with pytest.raises(EngineError, match="'longrope'") as caught:
        outcome(tiny.engine("phi3, rope that changes at 200"), 7)
    assert caught.value.code == "engine.shift"


def test_a_rotation_of_other_pairs_is_noticed(tmp_path: Path) -> None:
    shape = {name: value for name, value in SHAPE.items() if name not in ("head_dim", "hidden_size")}
    engine = load(save_model(tmp_path, CohereConfig(**shape, hidden_size=64)), dtype=DType.F32, block_tokens=BLOCK)
    with pytest.raises(EngineError, match="not the key that the model computes") as caught:
        outcome(engine, 7)
    assert caught.value.code == "engine.shift"


def test_an_empty_continuation_is_refused_and_an_empty_context_is_not(tiny: Models) -> None:
    engine = tiny.engine("llama")
    with pytest.raises(EngineError) as caught:
        extend_shifted(engine, engine.new_context(), [], engine.schedule, 1)
    assert caught.value.code == "engine.empty"
    tokens = some_tokens(NEW)
    own = engine.extend(engine.new_context(), tokens, engine.schedule)
    assert own.max_abs(extend_shifted(engine, engine.new_context(), tokens, engine.schedule, 7)) < 0.02
