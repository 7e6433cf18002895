"""A layer with room is, for whoever uses it, transformers' own layer; only the copying is gone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer

from kvsync.engines.transformers.roomy import RoomyLayer, room_for

HEADS, DIM = 2, 3
Change = Callable[[Any], object]

CHANGES: dict[str, Change] = {
    "crop": lambda layer: layer.crop(-1) if layer.get_seq_length() > 1 else None,
    "reorder": lambda layer: layer.reorder_cache(torch.tensor([0])),
    "select": lambda layer: layer.batch_select_indices(torch.tensor([0])),
    "reset": lambda layer: layer.reset(),
    "offload": lambda layer: layer.offload(),
}


def states(tokens: int, start: int = 0, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    keys = torch.arange(start, start + batch * HEADS * tokens * DIM, dtype=torch.float32)
    keys = keys.reshape(batch, HEADS, tokens, DIM)
    return keys, -keys


@given(st.lists(st.sampled_from([*CHANGES, "copy", "deepcopy"]) | st.integers(1, 700), max_size=12))
def test_any_sequence_of_uses_gives_what_the_concatenating_layer_gives(steps: list[str | int]) -> None:
    roomy, plain = RoomyLayer(), DynamicLayer()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []  # what was handed out, and what it was then
    for number, step in enumerate(steps):
        if isinstance(step, int):
            new = states(step, 1000 * number)
            for found, expected in zip(roomy.update(*new), plain.update(*new), strict=True):
                assert torch.equal(found, expected)
                seen.append((found, expected.clone()))
        elif step in CHANGES:
            CHANGES[step](roomy)
            CHANGES[step](plain)
        else:
            left, roomy = roomy, getattr(copy, step)(roomy)
            if left.get_seq_length():
                left.update(*states(1, 77))  # must not be seen by the copy
        assert roomy.get_seq_length() == plain.get_seq_length()
        assert roomy.get_mask_sizes(3) == plain.get_mask_sizes(3)
    for handed_out, then in seen:
        assert torch.equal(handed_out, then)


def test_tokens_are_appended_without_moving_those_that_are_there() -> None:
    layer = RoomyLayer()
    layer.update(*states(200))
    at = layer.keys.data_ptr(), layer.values.data_ptr()
    for _ in range(56):
        layer.update(*states(1))
    assert (layer.keys.data_ptr(), layer.values.data_ptr()) == at
    layer.update(*states(1))
    assert layer.keys.data_ptr() != at[0]


@given(st.integers(1, 1 << 20), st.integers(0, 1 << 12))
def test_the_room_depends_on_the_length_alone_and_never_shrinks(tokens: int, more: int) -> None:
    assert tokens <= room_for(tokens) <= tokens + max(256, tokens / 4)
    assert room_for(room_for(tokens)) == room_for(tokens) <= room_for(tokens + more)


def test_other_batches_and_types_get_the_answer_of_concatenation() -> None:
    layer = RoomyLayer()
    layer.update(*states(4))
    with pytest.raises(RuntimeError):
        layer.update(*states(4, batch=2))
    wide = [part.double() for part in states(2)]
    assert layer.update(*wide)[0].dtype == torch.float64
    assert layer.get_seq_length() == 6


def test_states_that_need_gradients_are_not_overwritten_under_autograd() -> None:
    layer = RoomyLayer()
    weight = torch.ones(1, requires_grad=True)
    keys, values = states(4)
    first = layer.update(keys * weight, values)[0]
    layer.update(keys * weight, values)
    first.square().sum().backward()
    assert weight.grad is not None
    assert weight.grad.item() == 2 * keys.square().sum().item()


def test_a_room_taken_in_inference_mode_is_left_behind_outside_it() -> None:
    layer = RoomyLayer()
    with torch.inference_mode():
        layer.update(*states(4))
    found, _ = layer.update(*states(1, 50))
    assert torch.equal(found, torch.cat([states(4)[0], states(1, 50)[0]], dim=-2))


def test_a_repeated_batch_goes_on_in_rooms_of_its_own() -> None:
    layer = RoomyLayer()
    layer.update(*states(4))
    before = layer.keys
    layer.batch_repeat_interleave(3)
    found, _ = layer.update(*states(2, 9, batch=3))
    assert torch.equal(found[1, :, :4], before[0])
    assert found.shape == (3, HEADS, 6, DIM)
