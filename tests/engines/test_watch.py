"""A model that was tampered with, before or after its fingerprint was taken, is never taken for the original."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Phi3Config

from kvsync.engines import as_engine
from kvsync.engines.transformers.wrapping import wrap
from kvsync_protocol.errors import CodedError
from tests.engines.tiny_models import BLOCK, FAMILIES, SHAPE, Models, make_model, some_tokens

Change = Callable[[Any], object]


def fresh_model() -> Any:
    return make_model(LlamaConfig(**SHAPE))


def patch_layer(model: Any) -> None:
    mlp = model.model.layers[1].mlp
    true = mlp.forward
    mlp.forward = lambda hidden: true(hidden) * 1.01


def patch_model(model: Any) -> None:
    true = model.forward

    def forward(input_ids: Any, cache: Any = None, use_cache: bool = True, return_dict: bool = True) -> Any:
        found = true(input_ids=input_ids, cache=cache, use_cache=use_cache, return_dict=return_dict)
        found.logits = found.logits * 1.5
        return found

    model.forward = forward


def exchange_module(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = torch.nn.GELU().eval()


def write_data(model: Any) -> None:
    """As merging an adapter does: a write that torch does not count."""
    model.model.layers[0].self_attn.q_proj.weight.data += 0.01


def write_weight(model: Any) -> None:
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[0, 0] += 1


CHANGES: dict[str, Change] = {
    "a weight": write_weight,
    "weights through .data": write_data,
    "rotary frequencies": lambda model: model.model.rotary_emb.inv_freq.mul_(1.5),
    "the forward of a layer": patch_layer,
    "the forward of the model": patch_model,
    "a hook after a layer": lambda model: model.model.layers[1].mlp.register_forward_hook(lambda m, i, o: o * 1.01),
    "a hook before a layer": lambda model: model.model.layers[1].mlp.register_forward_pre_hook(
        lambda m, i: (i[0] * 1.01,)
    ),
    "another activation": exchange_module,
    "another scale": lambda model: setattr(model.model.layers[0].self_attn, "scaling", 0.9),
    "another attention implementation": lambda model: model.set_attn_implementation("eager"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_before_or_after_gives_other_fingerprints(change: Change) -> None:
    model = fresh_model()
    first = as_engine(model)
    assert as_engine(model) is first
    change(model)
    after = as_engine(model)
    other = fresh_model()
    change(other)
    before = as_engine(other)
    assert after.fingerprints != first.fingerprints
    assert before.fingerprints != first.fingerprints


SEEN: dict[str, Change] = {name: change for name, change in CHANGES.items() if change is not write_data}
"""Writes that torch does not count are looked for where a model is handed in."""


@pytest.mark.parametrize("change", SEEN.values(), ids=SEEN)
def test_an_engine_computes_nothing_with_a_changed_model(change: Change) -> None:
    engine = as_engine(fresh_model())
    context = engine.new_context()
    engine.prefill(context, [1, 2, 3], engine.schedule)
    change(engine.model)  # type: ignore[attr-defined]
    with pytest.raises(CodedError) as caught:
        engine.extend(context, [4], engine.schedule)
    assert caught.value.code in {"engine.weights_changed", "engine.model_changed"}


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model.model.layers[1]], ids=["all", "a layer"])
def test_training_mode_is_refused_before_and_after(part: Callable[[Any], Any]) -> None:
    model = fresh_model()
    engine = as_engine(model)
    part(model).train()
    with pytest.raises(CodedError, match=r"module|changed") as caught:
        engine.prefill(engine.new_context(), [1], engine.schedule)
    assert caught.value.code == "engine.model_changed"
    with pytest.raises(CodedError) as caught:
        as_engine(model)
    assert caught.value.code == "engine.training"
    model.eval()
    assert as_engine(model) is engine


def test_what_forward_itself_rescales_is_no_change() -> None:
    config = FAMILIES["phi3, rope that changes at 200"]()
    assert isinstance(config, Phi3Config)
    model = make_model(config)
    engine = wrap(model, block_tokens=BLOCK)
    engine.prefill(engine.new_context(), some_tokens(230), engine.schedule)
    engine.prefill(engine.new_context(), some_tokens(10), engine.schedule)
    assert wrap(model, block_tokens=BLOCK) is engine


def test_a_model_that_has_generated_is_no_changed_model() -> None:
    model = fresh_model()
    engine = as_engine(model)
    model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=2, do_sample=False, use_cache=True)
    assert as_engine(model) is engine


def test_threads_that_wrap_one_model_at_once_get_one_engine() -> None:
    model = fresh_model()
    gate = threading.Barrier(4)
    engines = []

    def wrap_it() -> None:
        gate.wait()
        engines.append(as_engine(model))

    threads = [threading.Thread(target=wrap_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(engine) for engine in engines}) == 1


def test_a_model_made_in_inference_mode_is_wrapped() -> None:
    with torch.inference_mode():
        model = fresh_model()
    assert as_engine(model).fingerprints == as_engine(fresh_model()).fingerprints


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def settings_of_others() -> Iterator[None]:
    """What other code in the process may have set."""
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    torch.set_flush_denormal(True)
    torch.set_num_threads(2)
    torch.use_deterministic_algorithms(mode=False)
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(1)


SURROUNDINGS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "another default device": lambda: torch.device("meta"),
    "another default dtype": lambda: default_dtype(torch.float64),
    "other settings": settings_of_others,
}


@pytest.mark.parametrize("surroundings", SURROUNDINGS.values(), ids=SURROUNDINGS)
@pytest.mark.parametrize("family", ["llama", "gemma3, window of one block"])
def test_what_surrounds_a_call_changes_no_byte(
    surroundings: Callable[[], AbstractContextManager[object]], family: str, tiny: Models
) -> None:
    engine = tiny.engine(family)

    def compute() -> tuple[str, str]:
        context = engine.new_context()
        engine.prefill(context, some_tokens(150), engine.schedule)
        logits = engine.extend(context, some_tokens(9, seed=1), engine.schedule)
        _, steps = engine.decode_greedy(context, logits, 2)
        assert not any(layer.keys.is_inference() for layer in context.cache.layers)
        return logits.sha256().hex, steps.sha256().hex

    expected = compute()
    with surroundings():
        found = compute()
        assert torch.backends.mkldnn.enabled
    assert found == expected
