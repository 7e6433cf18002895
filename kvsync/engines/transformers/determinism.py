"""The settings under which a stack repeats itself: set before every call, recorded in the fingerprint.

Settings of torch are process-wide or belong to the calling thread, and other code may change them, so they
are put in place at every entry and not only once. They stay in place afterwards: a cache that was grafted is
used by the caller's own `generate`, which has to run under them too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

import torch
import torch.utils.deterministic

from kvsync.errors import EngineError

CUBLAS_VARIABLE: Final = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_WORKSPACE: Final = ":4096:8"
GQA_VARIABLE: Final = "TRANSFORMERS_SDPA_FORCE_GQA"
"""Read by transformers at every call: 1 leaves grouped heads to torch's kernel, which on a CPU reads keys and
values in place of a copy for each query head. On CUDA, a mask would then lead to the slow kernel."""


@dataclass(frozen=True, slots=True)
class Determinism:
    """`threads` is torch's intra-op thread count; it decides how sums are split, hence their bits."""

    threads: int
    device: torch.device

    @classmethod
    def choose(cls, threads: int, device: torch.device) -> Determinism:
        """`threads`, or as many as torch has now when it is 0.

        Raises:
            EngineError: `engine.threads`.
        """
        if not 0 <= threads <= 1024:
            raise EngineError("engine.threads", f"{threads} is no usable number of threads")
        return cls(threads or torch.get_num_threads(), device)

    def apply(self) -> None:
        """Put everything in place for this process and the calling thread.

        Raises:
            EngineError: `engine.threads` when torch does not take the thread count.
        """
        os.environ[CUBLAS_VARIABLE] = CUBLAS_WORKSPACE
        os.environ[GQA_VARIABLE] = self._gqa
        torch.use_deterministic_algorithms(mode=True)
        # Filling fresh memory hides nothing here and costs a pass over every restored tensor.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision("highest")
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
        torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
        torch.backends.mkldnn.deterministic = True  # type: ignore[assignment]
        # These choose attention kernels on the CPU too; cuDNN picks its own by timing and stays out.
        torch.backends.cuda.enable_flash_sdp(enabled=True)
        torch.backends.cuda.enable_mem_efficient_sdp(enabled=True)
        torch.backends.cuda.enable_math_sdp(enabled=True)
        torch.backends.cuda.enable_cudnn_sdp(enabled=False)
        torch.set_flush_denormal(False)
        # OpenMP and MKL keep the count per thread: another thread may still have another one.
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
            if torch.get_num_threads() != self.threads:
                raise EngineError("engine.threads", f"torch does not run with {self.threads} threads here")

    @property
    def _gqa(self) -> str:
        return "1" if self.device.type == "cpu" else "0"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Settings in place, no gradients, no autocast, tensors where and as torch makes them by itself.

        A caller's `inference_mode` would reach the cache, its default device and dtype whatever names neither.
        """
        self.apply()
        dtype = torch.get_default_dtype()
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(mode=False))
            stack.enter_context(torch.no_grad())
            stack.enter_context(torch.autocast(self.device.type, enabled=False))
            if torch.get_default_device().type != "cpu":
                stack.enter_context(torch.device("cpu"))
            if dtype != torch.float32:
                torch.set_default_dtype(torch.float32)
                stack.callback(torch.set_default_dtype, dtype)
            yield

    def as_fields(self) -> dict[str, str]:
        """What was set, for the numerics fingerprint."""
        return {
            # A GPU's sums are not split by how many threads the host has.
            "threads": str(self.threads) if self.device.type == "cpu" else "any",
            "sdp_kernels": f"flash efficient math gqa={self._gqa}",
            "determinism": "deterministic_algorithms=on cublas_workspace=:4096:8 cudnn_benchmark=off mkldnn=on",
            "precision": "fp32_matmul=highest tf32=off bf16_reduction=off fp16_reduction=off",
        }
