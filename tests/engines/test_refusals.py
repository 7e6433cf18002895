"""What cannot be exact is refused by name, before anything is computed; what fails leaves nothing half-done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, DeepseekV32Config, GPT2Config, LlamaConfig, T5Config
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

from kvsync.engines import Engine, as_engine, load_engine
from kvsync.engines.transformers import load
from kvsync.engines.transformers.layers import check_state, new_cache
from kvsync.engines.transformers.soundness import check_cache
from kvsync.engines.transformers.support import check_config
from kvsync.errors import EngineError
from kvsync_protocol.errors import CodedError
from kvsync_protocol.layout import DType
from tests.engines.tiny_models import BLOCK, SHAPE, Models, edit_config, make_model, some_tokens


def code_of(action: Callable[[], object]) -> str:
    with pytest.raises(CodedError) as caught:
        action()
    return caught.value.code


class ForgetfulLayer(DynamicLayer):  # type: ignore[misc]
    """Looks like a full layer and keeps a state of its own."""

    def update(self, *args: Any, **kwargs: Any) -> Any:
        self.last_seen = args[0]
        return super().update(*args, **kwargs)


def test_an_invented_layer_class_is_refused_by_name_before_any_compute(
    tiny: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    model = make_model(LlamaConfig(**SHAPE))
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    monkeypatch.setitem(DYNAMIC_LAYER_TYPE_MAPPING, "full_attention", ForgetfulLayer)
    with pytest.raises(EngineError) as caught:
        as_engine(model)
    assert caught.value.code == "engine.unsupported_layer"
    assert caught.value.fields["layer_class"] == "ForgetfulLayer"
    assert calls == []
    assert code_of(lambda: load(tiny.folder("llama"))) == "engine.unsupported_layer"


def test_a_known_layer_that_holds_something_new_is_refused() -> None:
    cache = new_cache(LlamaConfig(**SHAPE))
    check_state(cache)
    cache.layers[1].indexer_keys = torch.zeros(1)
    assert code_of(lambda: check_state(cache)) == "engine.unsupported_layer"
    del cache.layers[1].indexer_keys
    cache.ring = 4
    assert code_of(lambda: check_state(cache)) == "engine.unsupported_layer"


CONFIGS = {
    "indexed attention": (DeepseekV32Config(num_hidden_layers=2), "engine.unsupported_layer"),
    "encoder-decoder": (T5Config(), "engine.unsupported_model"),
    "positions that depend on earlier calls": (
        LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
        "engine.unsupported_rope",
    ),
    "packed weights": (LlamaConfig(quantization_config={"quant_method": "gptq"}), "engine.quantised"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_config_that_is_not_understood_is_refused(case: str) -> None:
    config, code = CONFIGS[case]
    with pytest.raises(EngineError) as caught:
        check_config(config)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("name", "value"),
    [("use_bidirectional_attention", True), ("vision_config", {"depth": 1})],
)
def test_a_setting_that_changes_what_is_seen_is_refused(name: str, value: object) -> None:
    config = LlamaConfig(**SHAPE)
    check_config(config)
    setattr(config, name, value)
    assert code_of(lambda: check_config(config)) == "engine.unsupported_model"


def test_a_model_without_a_causal_cache_is_refused() -> None:
    from transformers import BertModel

    model = BertModel(BertConfig(hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8))
    assert code_of(lambda: as_engine(model.eval())) == "engine.unsupported_model"


def test_a_model_of_another_family_that_keeps_plain_layers_just_works() -> None:
    model = make_model(GPT2Config(vocab_size=50, n_positions=128, n_embd=32, n_layer=2, n_head=2))
    assert [group.name for group in as_engine(model).groups] == ["full"]


Spoil = Callable[[Path], object]
FOLDERS: dict[str, tuple[Spoil, str]] = {
    "no such directory": (shutil.rmtree, "model.missing"),
    "no config": (lambda path: (path / "config.json").unlink(), "engine.config"),
    "config is not JSON": (lambda path: (path / "config.json").write_text("{"), "engine.config"),
    "config is a list": (lambda path: (path / "config.json").write_text("[]"), "engine.config"),
    "config of an unknown model": (
        lambda path: (path / "config.json").write_text('{"model_type": "no such"}'),
        "engine.config",
    ),
    "config with impossible numbers": (lambda path: edit_config(path, num_hidden_layers="many"), "engine.config"),
    "code of its own": (
        lambda path: edit_config(path, model_type="foreign", auto_map={"AutoConfig": "evil.Config"}),
        "engine.config",
    ),
    "no tokenizer": (lambda path: (path / "tokenizer.json").unlink(), "engine.no_tokenizer"),
    "tokenizer is not JSON": (lambda path: (path / "tokenizer.json").write_text("{"), "engine.no_tokenizer"),
    "no weights": (lambda path: (path / "model.safetensors").unlink(), "engine.weights"),
    "pickled weights": (
        lambda path: (path / "model.safetensors").rename(path / "pytorch_model.bin"),
        "engine.weights",
    ),
    "empty weights": (lambda path: (path / "model.safetensors").write_bytes(b""), "engine.weights"),
    "truncated weights": (
        lambda path: (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:5000]),
        "engine.weights",
    ),
    "weights of fewer layers": (lambda path: edit_config(path, num_hidden_layers=5), "engine.weights"),
    "weights of another width": (lambda path: edit_config(path, intermediate_size=96), "engine.weights"),
    "an adapter": (lambda path: (path / "adapter_config.json").write_text("{}"), "engine.adapter"),
    "quantised": (
        lambda path: edit_config(path, quantization_config={"quant_method": "gptq", "bits": 4}),
        "engine.quantised",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_a_bad_model_directory_is_one_clear_error(case: str, tiny: Models, tmp_path: Path) -> None:
    spoil, code = FOLDERS[case]
    folder = Path(shutil.copytree(tiny.folder("llama"), tmp_path / "model"))
    spoil(folder)
    with pytest.raises(CodedError) as caught:
        load_engine(folder)
    assert caught.value.code == code
    assert "\n" not in caught.value.message


def test_a_directory_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    assert code_of(lambda: load_engine(tmp_path / ("x" * 300))) == "engine.unreadable"


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"device": "nowhere"}, "engine.device"),
        ({"device": "meta"}, "engine.device"),
        ({"device": "cuda:99"}, "engine.device"),
        ({"attention": "flash_attention_2"}, "engine.attention"),
        ({"threads": -1}, "engine.threads"),
        ({"name": "no such engine"}, "engine.unknown"),
    ],
)
def test_a_bad_setting_is_one_clear_error(settings: dict[str, Any], code: str, tiny: Models) -> None:
    assert code_of(lambda: load_engine(tiny.folder("llama"), **settings)) == code


@pytest.mark.parametrize(
    ("tokens", "code"),
    [
        ([], "engine.empty"),
        ([-1], "engine.token"),
        ([5, 131], "engine.token"),
        ([2**40], "engine.token"),
        (some_tokens(1025), "engine.too_long"),
    ],
)
def test_tokens_that_do_not_fit_the_model_are_refused_before_compute(
    tokens: list[int], code: str, llama: Engine
) -> None:
    context = llama.new_context()
    for action in (llama.prefill, llama.extend):
        assert code_of(lambda action=action: action(context, tokens, llama.schedule)) == code  # type: ignore[misc]
    assert code_of(lambda: llama.one_shot(tokens)) == code
    assert context.position == 0
    llama.extend(context, [1], llama.schedule)


def test_the_last_position_can_be_used_and_the_next_cannot(llama: Engine) -> None:
    context = llama.new_context()
    logits = llama.prefill(context, some_tokens(1020), llama.schedule)
    llama.decode_greedy(context, logits, 4)
    assert code_of(lambda: llama.extend(context, [1], llama.schedule)) == "engine.too_long"
    assert code_of(lambda: llama.layout(1025)) == "engine.too_long"
    assert code_of(lambda: llama.layout(0)) == "engine.empty"


def test_a_context_of_another_engine_or_schedule_is_refused(llama: Engine, sliding: Engine, tiny: Models) -> None:
    context = llama.new_context()
    assert code_of(lambda: sliding.extend(context, [1], sliding.schedule)) == "engine.context"
    other = load(tiny.folder("llama"), block_tokens=2 * BLOCK)
    assert code_of(lambda: llama.extend(context, [1], other.schedule)) == "engine.schedule"


def test_a_cache_that_somebody_else_has_moved_is_noticed(llama: Engine) -> None:
    context = llama.new_context()
    llama.extend(context, [1, 2, 3], llama.schedule)
    context.cache.crop(-1)
    assert code_of(lambda: llama.extend(context, [4], llama.schedule)) == "engine.context"


@pytest.mark.parametrize("family", ["llama", "gemma3, window of one block"])
def test_every_deviation_of_a_finished_cache_is_named(family: str, tiny: Models) -> None:
    engine = tiny.engine(family)
    tokens, slots = some_tokens(100), engine._loaded.shape.slots

    def cache_of() -> Any:
        context = engine.new_context()
        engine.prefill(context, tokens, engine.schedule)
        return context.cache

    def wrong(change: Callable[[Any], object]) -> str:
        cache = cache_of()
        change(cache)
        return code_of(lambda: check_cache(cache, slots, 100))

    check_cache(cache_of(), slots, 100)
    first = 0
    changes: list[Callable[[Any], object]] = [
        lambda cache: cache.layers.pop(),
        lambda cache: cache.layers.append(DynamicLayer()),
        lambda cache: cache.layers.__setitem__(first, ForgetfulLayer()),
        lambda cache: setattr(cache.layers[first], "keys", cache.layers[first].keys[:, :1]),
        lambda cache: setattr(cache.layers[first], "values", cache.layers[first].values[..., 1:, :]),
        lambda cache: setattr(cache.layers[first], "values", cache.layers[first].values.half()),
        lambda cache: setattr(cache.layers[first], "is_initialized", False),
        lambda cache: setattr(cache.layers[first], "sliding_window", 7),
    ]
    if family != "llama":
        changes.append(lambda cache: setattr(cache.layers[first], "cumulative_length", 0))
    for change in changes:
        assert wrong(change) == "engine.restore"


def test_weights_written_in_place_are_noticed(tiny: Models) -> None:
    engine = load(tiny.folder("llama"), block_tokens=BLOCK)
    context = engine.new_context()
    engine.verify_weights()
    with torch.no_grad():
        engine.model.model.norm.weight.add_(0.5)
    assert code_of(lambda: engine.extend(context, [1], engine.schedule)) == "engine.weights_changed"
    assert code_of(engine.verify_weights) == "engine.weights_changed"


def test_weights_written_behind_torch_are_noticed_by_hashing(tiny: Models) -> None:
    engine = load(tiny.folder("llama"), block_tokens=BLOCK)
    engine.model.model.norm.weight.detach().numpy()[0] = 3.0
    assert code_of(engine.verify_weights) == "engine.weights_changed"


def test_a_model_in_training_mode_is_refused() -> None:
    assert code_of(lambda: as_engine(make_model(LlamaConfig(**SHAPE)).train())) == "engine.training"
    assert code_of(lambda: as_engine(object())) == "engine.unsupported_model"


def test_the_message_names_the_limit_and_the_way_out(llama: Engine) -> None:
    with pytest.raises(EngineError) as caught:
        llama.layout(2000)
    assert caught.value.fields == {"tokens": 2000, "limit": 1024}
    assert json.loads(json.dumps(caught.value.as_dict()))["hint"]


@pytest.mark.parametrize("dtype", list(DType))
def test_every_element_type_of_the_format_is_computed_in_or_refused_by_name(dtype: DType, tiny: Models) -> None:
    def loaded() -> Engine:
        return load(tiny.folder("llama"), dtype=dtype, block_tokens=BLOCK)

    if dtype.size == 1:
        assert code_of(loaded) == "engine.dtype"
    else:
        assert {group.dtype for group in loaded().groups} == {dtype}
