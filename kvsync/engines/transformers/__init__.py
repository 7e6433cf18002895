"""The engine for Hugging Face transformers 5: full and sliding-window attention, CPU and CUDA."""

from kvsync.engines.transformers.loader import load
from kvsync.engines.transformers.wrapping import wrap

__all__ = ["load", "wrap"]
