"""Logits: bytes, hash, choice and distance."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvsync.engines import Engine
from kvsync.engines.transformers.logits import TensorLogits
from kvsync.errors import EngineError
from kvsync_protocol.digest import sha256
from kvsync_protocol.layout import DType
from tests.engines.tiny_models import VOCAB, some_tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_hash_covers_exactly_the_raw_bytes(dtype: torch.dtype) -> None:
    tensor = torch.tensor([[1.5, -2.0, 0.0], [4.0, 0.25, -0.0]], dtype=dtype)
    logits = TensorLogits(tensor)
    raw = bytes(tensor.view(torch.uint8).numpy().tobytes())
    assert bytes(logits.buffer()) == raw
    assert logits.sha256() == sha256(raw)
    assert (logits.positions, logits.vocab) == (2, 3)


def test_minus_zero_is_another_value_than_zero() -> None:
    assert TensorLogits(torch.tensor([[0.0]])).sha256() != TensorLogits(torch.tensor([[-0.0]])).sha256()


def test_stored_bytes_come_back_as_one_position() -> None:
    tensor = torch.tensor([[1.5, -2.0, 7.0]], dtype=torch.bfloat16)
    found = TensorLogits.of_bytes(bytes(TensorLogits(tensor).buffer()), DType.BF16)
    assert torch.equal(found.tensor, tensor)


def test_the_lowest_id_wins_among_equals() -> None:
    assert TensorLogits(torch.tensor([[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0]])).argmax() == [1, 0]


def test_divergence_is_zero_for_equals_and_the_known_value_otherwise() -> None:
    even, uneven = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])
    assert TensorLogits(even).kl(TensorLogits(even.clone())) == 0.0
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    assert TensorLogits(even).kl(TensorLogits(uneven)) == pytest.approx(expected)
    with pytest.raises(EngineError) as caught:
        TensorLogits(even).kl(TensorLogits(torch.zeros(2, 2)))
    assert caught.value.code == "engine.logits"


def drawn_from_all(tensor: torch.Tensor, temperature: float, top_p: float, number: float) -> int:
    """`Logits.draw` as it is defined: by the order of the whole vocabulary."""
    chances = torch.softmax(tensor.double() / temperature, dim=-1)
    likely, ids = chances.sort(descending=True, stable=True)
    reached = likely.cumsum(dim=-1)
    kept = min(int(torch.searchsorted(reached, top_p)), len(ids) - 1)
    place = int(torch.searchsorted(reached[: kept + 1], number * float(reached[kept]), right=True))
    return int(ids[min(place, kept)])


@given(
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
    st.floats(0.05, 4.0),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_draw_is_that_from_the_order_of_all_tokens(
    seed: int, spread: float, dtype: torch.dtype, temperature: float, top_p: float, number: float
) -> None:
    made = torch.Generator().manual_seed(seed)
    tensor = (torch.randn(500, generator=made) * spread).to(dtype)  # many equals in bfloat16, nothing else at 0
    drawn = TensorLogits(tensor[None]).draw(temperature, top_p, number)
    assert drawn == drawn_from_all(tensor, temperature, top_p, number)


def test_a_prefill_gives_the_last_position_and_extend_gives_all(llama: Engine) -> None:
    tokens = some_tokens(30)
    last = llama.prefill(llama.new_context(), tokens, llama.schedule)
    every = llama.extend(llama.new_context(), tokens, llama.schedule)
    assert (last.positions, last.vocab) == (1, VOCAB)
    assert (every.positions, every.vocab) == (30, VOCAB)
    assert last.argmax()[0] == every.argmax()[-1]


def test_one_shot_keeps_as_many_positions_as_asked_and_is_close(llama: Engine) -> None:
    tokens = some_tokens(150)
    canonical = llama.extend(llama.new_context(), tokens, llama.schedule)
    one_shot = llama.one_shot(tokens, keep=150)
    assert one_shot.positions == 150
    assert canonical.kl(one_shot) < 1e-6


def test_decoding_feeds_each_token_it_chooses(llama: Engine) -> None:
    tokens = some_tokens(20)
    context = llama.new_context()
    chosen, logits = llama.decode_greedy(context, llama.prefill(context, tokens, llama.schedule), 3)
    assert len(chosen) == logits.positions == 3
    assert context.position == 23
    assert logits.argmax()[:2] == chosen[1:]
    with pytest.raises(EngineError) as caught:
        llama.decode_greedy(context, logits, 0)
    assert caught.value.code == "engine.empty"
