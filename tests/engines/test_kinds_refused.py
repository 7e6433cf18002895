"""Kinds of state that cannot be moved exactly are refused by name; so is a model that hides or ignores some."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import (
    DeepseekV32Config,
    Gemma3Config,
    JambaConfig,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    MiniMaxConfig,
    RecurrentGemmaConfig,
    RwkvConfig,
)
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicLayer

from kvsync.engines import as_engine
from kvsync.engines.transformers.layers import new_cache
from kvsync.engines.transformers.support import check_config
from kvsync.errors import EngineError
from tests.engines.tiny_kinds import HEADLESS, LINEAR_FULL
from tests.engines.tiny_models import SHAPE, make_model

LATENT: dict[str, Any] = {
    **HEADLESS,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
SMALL: dict[str, Any] = {"vocab_size": 131, "hidden_size": 48, "num_hidden_layers": 2}

REFUSED: dict[str, tuple[Callable[[], Any], str, str]] = {
    "indexed attention": (
        lambda: DeepseekV32Config(**LATENT, index_n_heads=2, index_head_dim=16, index_topk=8),
        "engine.unsupported_layer",
        "indexed_attention",
    ),
    "a recurrent model that forgets when several tokens follow": (
        lambda: JambaConfig(
            **HEADLESS,
            mamba_d_state=8,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=4,
            num_experts=2,
            attn_layer_period=2,
            attn_layer_offset=1,
        ),
        "engine.unsupported_model",
        "ignores its state0",
    ),
    "a model whose layers count no tokens": (
        lambda: Mamba2Config(
            **SMALL, num_heads=6, head_dim=16, n_groups=1, state_size=8, conv_kernel=4, chunk_size=16, expand=2
        ),
        "engine.unsupported_model",
        "no layer counts its tokens",
    ),
    "a cache class of the model's own": (
        lambda: MiniMaxConfig(
            **SHAPE, block_size=16, num_local_experts=2, num_experts_per_tok=1, layer_types=LINEAR_FULL
        ),
        "engine.unsupported_model",
        "cache of its own",
    ),
    "states that lie in the modules": (
        lambda: RecurrentGemmaConfig(
            **{**SMALL, "num_hidden_layers": 3}, intermediate_size=80, num_attention_heads=4
        ),
        "engine.unsupported_model",
        "cache of its own",
    ),
    "states that are returned beside the cache": (
        lambda: RwkvConfig(**SMALL),
        "engine.unsupported_model",
        "takes no cache",
    ),
    "images beside text": (lambda: Gemma3Config(), "engine.unsupported_model", "more than text"),
}


def refusal(action: Callable[[], object]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        action()
    assert "\n" not in caught.value.message
    return caught.value


@pytest.mark.parametrize("case", REFUSED)
def test_a_kind_that_is_not_restored_is_refused_by_name(case: str) -> None:
    config, code, text = REFUSED[case]

    def use() -> None:
        check_config(config())
        as_engine(make_model(config()))

    error = refusal(use)
    assert error.code == code
    assert text in error.message


class Diary(LlamaForCausalLM):  # type: ignore[misc]
    """Remembers in the module itself what it has said, and lets it into what it says next."""

    said: Any = 0.0

    def forward(self, input_ids: Any = None, cache: Any = None, **kwargs: Any) -> Any:
        out = super().forward(input_ids, cache=cache, **kwargs)
        out.logits = out.logits + self.said
        self.said = self.said + 0.01 * float(out.logits[0, -1, 0])
        return out


def test_a_model_that_remembers_outside_its_cache_is_refused() -> None:
    error = refusal(lambda: as_engine(Diary(LlamaConfig(**SHAPE)).eval()))
    assert error.code == "engine.unsupported_model"
    assert "Diary remembers more than its cache holds" in error.message


class OracleLayer(DynamicLayer):  # type: ignore[misc]
    """A layer type of the test's own, made known to transformers as models make theirs known."""

    _layer_type = "telepathy"


def test_an_invented_layer_type_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(DYNAMIC_LAYER_TYPE_MAPPING, "telepathy")
    config = LlamaConfig(**SHAPE)
    config.layer_types = ["full_attention", "telepathy", "full_attention", "full_attention"]
    for known in (False, True):
        if known:
            monkeypatch.setitem(DYNAMIC_LAYER_TYPE_MAPPING, "telepathy", OracleLayer)
        error = refusal(lambda: check_config(config))
        assert (error.code, error.fields["layer_class"]) == ("engine.unsupported_layer", "telepathy")
        error = refusal(lambda: new_cache(config))
        assert error.code == "engine.unsupported_layer"
        assert ("OracleLayer" if known else "telepathy") in error.message
