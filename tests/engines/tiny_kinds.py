"""Small random models of the classes whose layers keep something else than plain keys and values, by kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import (
    BambaConfig,
    DeepseekV3Config,
    FalconH1Config,
    Gemma3nTextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    GraniteMoeHybridConfig,
    InklingTextConfig,
    KimiLinearConfig,
    Lfm2Config,
    Llama4TextConfig,
    NemotronHConfig,
    Qwen3_5TextConfig,
    Qwen3NextConfig,
)

from kvsync.engines.transformers import load
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync_protocol.layout import DType
from tests.engines.tiny_models import SHAPE, save_model

BLOCK = 16
EVERY = 2
"""Blocks from one snapshot to the next."""

HEADLESS = {name: value for name, value in SHAPE.items() if name != "head_dim"}
LINEAR_FULL = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
SHARING = ["sliding_attention", "full_attention"] * 3
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
MAMBA = {
    "mamba_n_heads": 6,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 8,
    "mamba_d_conv": 4,
    "mamba_chunk_size": 16,
}
PER_LAYER = {"vocab_size_per_layer_input": 131, "hidden_size_per_layer_input": 8}

KINDS: dict[str, Callable[[], Any]] = {
    "llama 4, chunks of 40": lambda: Llama4TextConfig(
        **SHAPE,
        intermediate_size_mlp=80,
        num_local_experts=2,
        num_experts_per_tok=1,
        attention_chunk_size=40,
        no_rope_layer_interval=2,
        interleave_moe_layer_step=2,
    ),
    "deepseek v3, latent": lambda: DeepseekV3Config(
        **{**HEADLESS, "num_key_value_heads": 4, "num_hidden_layers": 3},
        q_lora_rank=24,
        kv_lora_rank=20,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        v_head_dim=16,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
    ),
    "gemma 3n, two layers read others' keys": lambda: Gemma3nTextConfig(
        **{**SHAPE, "num_hidden_layers": 6, "intermediate_size": [80] * 6},
        **PER_LAYER,
        sliding_window=24,
        layer_types=SHARING,
        num_kv_shared_layers=2,
        laurel_rank=8,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.0] * 6,
    ),
    "gemma 4, two layers read others' keys": lambda: Gemma4TextConfig(
        **{**SHAPE, "num_hidden_layers": 6},
        **PER_LAYER,
        sliding_window=24,
        layer_types=SHARING,
        num_kv_shared_layers=2,
        global_head_dim=16,
    ),
    "gpt-oss, attention sinks": lambda: GptOssConfig(
        **SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=24
    ),
    "qwen3-next, gated delta rule": lambda: Qwen3NextConfig(
        **SHAPE,
        **DELTA,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        layer_types=LINEAR_FULL,
    ),
    "qwen3.5, gated delta rule": lambda: Qwen3_5TextConfig(**SHAPE, **DELTA, layer_types=LINEAR_FULL),
    "granite 4, mamba-2": lambda: GraniteMoeHybridConfig(
        **HEADLESS,
        **MAMBA,
        layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
        mamba_expand=2,
        num_local_experts=0,
        shared_intermediate_size=64,
        position_embedding_type="rope",
    ),
    "nemotron-h, mamba-2 and layers without attention": lambda: NemotronHConfig(
        **SHAPE,
        layers_block_type=["mamba", "moe", "attention", "mamba"],
        mamba_num_heads=6,
        mamba_head_dim=16,
        n_groups=1,
        ssm_state_size=8,
        conv_kernel=4,
        chunk_size=16,
        n_routed_experts=2,
        moe_intermediate_size=32,
        moe_shared_expert_intermediate_size=32,
    ),
    "bamba, mamba-2": lambda: BambaConfig(**HEADLESS, **MAMBA, attn_layer_indices=[1, 3], mamba_expand=2),
    "falcon-h1, attention and mamba-2 in every layer": lambda: FalconH1Config(**SHAPE, **MAMBA, mamba_d_ssm=96),
    "kimi linear, latent attention and delta rule": lambda: KimiLinearConfig(
        **{**SHAPE, "num_key_value_heads": 4, "head_dim": 8},
        layer_types=LINEAR_FULL,
        kv_lora_rank=20,
        qk_rope_head_dim=8,
        qk_nope_head_dim=12,
        qk_head_dim=20,
        v_head_dim=16,
        num_experts=4,
        num_experts_per_token=2,
        moe_intermediate_size=32,
        linear_head_dim=8,
        linear_num_heads=4,
        model_max_length=1024,
    ),
    "inkling, windows and four convolutions in a layer": lambda: InklingTextConfig(
        **SHAPE,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=16,
        sliding_window_size=24,
        d_rel=4,
        rel_extent=32,
        layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
        moe_intermediate_size=32,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_shared_experts=1,
        mlp_layer_types=["dense", "sparse", "dense", "sparse"],
        conv_kernel_size=4,
    ),
    "lfm2, short convolutions": lambda: Lfm2Config(
        **SHAPE,
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        conv_L_cache=3,
        block_multiple_of=8,
    ),
}

RECURRENT = [
    "qwen3-next, gated delta rule",
    "qwen3.5, gated delta rule",
    "granite 4, mamba-2",
    "nemotron-h, mamba-2 and layers without attention",
    "bamba, mamba-2",
    "falcon-h1, attention and mamba-2 in every layer",
    "kimi linear, latent attention and delta rule",
    "inkling, windows and four convolutions in a layer",
    "lfm2, short convolutions",
]


class KindModels:
    """Model directories by kind, made once; two engines for each, loaded apart, so that they share no object."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._engines: dict[tuple[str, DType], tuple[TransformersEngine, TransformersEngine]] = {}

    def folder(self, kind: str) -> Path:
        path = self._root / "".join(letter if letter.isalnum() else "-" for letter in kind)
        return path if path.exists() else save_model(path, KINDS[kind]())

    def engines(self, kind: str, dtype: DType = DType.F32) -> tuple[TransformersEngine, TransformersEngine]:
        if (kind, dtype) not in self._engines:
            settings: dict[str, Any] = {"dtype": dtype, "block_tokens": BLOCK, "snapshot_blocks": EVERY}
            self._engines[kind, dtype] = (
                load(self.folder(kind), **settings),
                load(self.folder(kind), **settings),
            )
        return self._engines[kind, dtype]

    def engine(self, kind: str) -> TransformersEngine:
        return self.engines(kind)[0]
