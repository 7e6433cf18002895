"""What the fields of a fingerprint mean, in plain words. A field this page does not know is shown by its name."""

from __future__ import annotations

from typing import Final

_MEANINGS: Final = {
    # compatibility
    "adapters": "fine-tuning adapters on top of the weights",
    "block_tokens": "tokens per block",
    "chat_template": "how a conversation becomes one text",
    "config": "the model's configuration: sizes, positions, windows",
    "format": "version of the artifact format",
    "kv_dtype": "element type of the stored keys and values",
    "layers": "kind of every layer, in order",
    "layout": "how keys and values lie in a block",
    "model_class": "the architecture's implementation",
    "quantisation": "how the weights are quantised",
    "rope": "how positions are encoded",
    "tokenizer": "how text becomes token ids",
    "weights": "every weight of the model",
    # numerics
    "attention": "implementation of attention",
    "blas": "library of matrix products",
    "blas_library": "library of matrix products on the GPU",
    "caches": "sizes of the processor's caches, which choose how sums are split",
    "canary": "bytes that this stack computes from a fixed text with this very model",
    "cublas": "version of cuBLAS",
    "cuda": "version of CUDA",
    "cudnn": "version of cuDNN",
    "determinism": "switches that make results repeatable",
    "device": "the processor or GPU architecture",
    "dtype": "element type of the arithmetic",
    "engine": "the engine and its version",
    "environment": "environment variables that change arithmetic",
    "isa": "instruction sets of the processor",
    "onednn": "version of oneDNN",
    "precision": "reduced-precision switches",
    "schedule": "where prefill is cut into calls",
    "sdp_kernels": "attention kernels that may be chosen",
    "tensor_parallel": "over how many devices the model is split",
    "threads": "number of threads, which decides how sums are split",
    "torch": "version of PyTorch",
}


def meaning(field: str) -> str:
    return _MEANINGS.get(field, "a field this version of kvsync has no words for")
