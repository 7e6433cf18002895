"""Fixtures that several areas share: small real artifacts, made from a seed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from benchmarks.seeded import SIGNER as SIGNER
from benchmarks.seeded import Artifact, build_artifact, fingerprints
from kvsync_protocol.fingerprint import Fingerprints

settings.register_profile("kvsync", deadline=None)  # how long an example takes says nothing on a busy machine
settings.load_profile("kvsync")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As a shell's background job gets it; every process that a test starts and interrupts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """Engines leave their thread count in place; the next test, of any area, finds the process as it began."""
    yield
    torch.set_num_threads(THREADS)


@pytest.fixture
def make_artifact() -> Callable[..., Artifact]:
    """`build_artifact`: (seed, tokens, *, block_tokens, key, prints, boundaries, heads, dim, head) -> Artifact."""
    return build_artifact


@pytest.fixture
def make_fingerprints() -> Callable[..., Fingerprints]:
    """`fingerprints`: (model, host, canary) -> Fingerprints."""
    return fingerprints


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers and 32,768 positions, saved with a tokenizer of the words w0 to w99."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny-model")
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(100)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32_768,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
