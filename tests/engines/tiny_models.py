"""Small, randomly initialised models of real transformers classes, saved as a user's model directories are."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from kvsync.engines.transformers import load
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync_protocol.layout import DType

VOCAB = 131
BLOCK = 64
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]

FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama tied, grouped by one": lambda: LlamaConfig(
        **{**SHAPE, "tie_word_embeddings": True, "num_key_value_heads": 1}
    ),
    "qwen2 with biases": lambda: Qwen2Config(**SHAPE),
    "qwen3 with q and k norms": lambda: Qwen3Config(**SHAPE),
    "mistral, window below a block": lambda: MistralConfig(**SHAPE, sliding_window=24),
    "mistral, window above a block": lambda: MistralConfig(**SHAPE, sliding_window=100),
    "gemma2, soft-capped": lambda: Gemma2Config(
        **SHAPE, sliding_window=40, layer_types=MIXED, attn_logit_softcapping=20.0, final_logit_softcapping=10.0
    ),
    "gemma3, window of one block": lambda: Gemma3TextConfig(**SHAPE, sliding_window=BLOCK, layer_types=MIXED),
    "gemma3, window of two tokens": lambda: Gemma3TextConfig(**SHAPE, sliding_window=2, layer_types=MIXED),
    "phi3, rope that changes at 200": lambda: Phi3Config(
        **{key: value for key, value in SHAPE.items() if key != "head_dim"},
        original_max_position_embeddings=200,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 200,
            "short_factor": [1.0] * 6,
            "long_factor": [2.0] * 6,
        },
    ),
}


def save_tokenizer(folder: Path) -> None:
    words = {f"w{index}": index for index in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)


def save_letters(folder: Path) -> None:
    """A tokenizer that gives a text as many different tokens as it has letters."""
    letters = {chr(32 + index): index for index in range(95)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token=" "))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=" ").save_pretrained(folder)


def make_model(config: Any, seed: int = 0) -> Any:
    """A model in fp32 with weights large enough for its logits to tell states apart."""
    torch.manual_seed(seed)
    config.initializer_range = 0.3
    return AutoModelForCausalLM.from_config(config).eval()


def save_model(folder: Path, config: Any, seed: int = 0) -> Path:
    make_model(config, seed).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def edit_config(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@dataclass
class Models:
    """Model directories by family, made once; engines by family and dtype, loaded once."""

    root: Path

    def __post_init__(self) -> None:
        self._engines: dict[tuple[str, DType], TransformersEngine] = {}

    def folder(self, family: str) -> Path:
        path = self.root / "".join(letter if letter.isalnum() else "-" for letter in family)
        return path if path.exists() else save_model(path, FAMILIES[family]())

    def engine(self, family: str, dtype: DType = DType.F32) -> TransformersEngine:
        if (family, dtype) not in self._engines:
            self._engines[family, dtype] = load(self.folder(family), dtype=dtype, block_tokens=BLOCK)
        return self._engines[family, dtype]


def some_tokens(count: int, seed: int = 0) -> list[int]:
    return [random.Random(f"{seed}/{index}").randrange(VOCAB) for index in range(count)]
