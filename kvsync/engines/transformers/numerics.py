"""The numerics fingerprint: everything known of the stack that could change a bit. Measured, never typed in."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from kvsync.engines.transformers.determinism import Determinism
from kvsync_protocol.layout import AnyGroup, DType, StateGroup
from kvsync_protocol.schedule import Schedule

_CPU_FLAGS: Final = re.compile(r"avx.*|amx.*|fma|f16c|neon|asimd.*|sve.*|bf16|i8mm|fphp")
_VARIABLES: Final = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_DYNAMIC",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TORCH_BLAS_PREFER_CUBLASLT",
)
"""Switches of the libraries below torch that change results when set."""


_KERNELS: Final = ("causal-conv1d", "flash-linear-attention", "fla-core", "kernels", "mamba-ssm")
"""Packages that replace the code of recurrent layers where they are installed."""


def numerics_fields(
    *, determinism: Determinism, attention: str, dtype: DType, schedule: Schedule, groups: Sequence[AnyGroup] = ()
) -> dict[str, str]:
    """All fields but the canary."""
    fields = {
        "attention": attention,
        "dtype": dtype.value,
        "engine": f"transformers {transformers.__version__}",
        "environment": _environment(),
        "schedule": f"cuts every {schedule.block_tokens}",
        "tensor_parallel": "1",
        "torch": torch.__version__,
        **determinism.as_fields(),
    }
    if determinism.device.type == "cuda":
        fields.update(_cuda_fields(determinism.device))
    else:
        fields.update(_cpu_fields())
    if any(isinstance(group, StateGroup) for group in groups):
        fields["recurrent_kernels"] = " ".join(map(_installed, _KERNELS))
    return fields


def _installed(package: str) -> str:
    try:
        return f"{package}={metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return f"{package}=none"


def host_name() -> str:
    """The processor by its maker's name: what a remembered canary belongs to besides its fields."""
    for line in _cpuinfo():
        if line.startswith(("model name", "Model", "CPU part")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _cpu_fields() -> dict[str, str]:
    built = torch.__config__.show()
    blas = re.search(r"Math Kernel Library Version (\S+)", built)
    onednn = re.search(r"MKL-DNN v(\S+)", built)
    return {
        "blas": f"mkl {blas.group(1)}" if blas else _build_setting(built, "BLAS_INFO"),
        "device": f"cpu {platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "isa": _isa(),
        "caches": _cache_sizes(),
        "onednn": f"{onednn.group(1)} {'on' if torch.backends.mkldnn.enabled else 'off'}" if onednn else "none",
    }


def _cuda_fields(device: torch.device) -> dict[str, str]:
    major, minor = torch.cuda.get_device_capability(device)
    backends: Any = torch.backends
    return {
        "device": f"cuda sm_{major}{minor} {torch.cuda.get_device_name(device)}",
        "cuda": str(torch.version.cuda),
        "cublas": _cublas_version(str(torch.version.cuda)),
        "cudnn": str(backends.cudnn.version()),
        "blas_library": str(backends.cuda.preferred_blas_library()),
    }


def _cublas_version(cuda: str) -> str:
    """Asked of the library that torch has already loaded."""
    try:
        library = ctypes.CDLL(f"libcublas.so.{cuda.partition('.')[0]}")
        parts = []
        for which in range(3):  # major, minor, patch
            value = ctypes.c_int()
            if library.cublasGetProperty(which, ctypes.byref(value)):
                return "unknown"
            parts.append(str(value.value))
        return ".".join(parts)
    except (OSError, AttributeError):
        return "unknown"


def _environment() -> str:
    found = [f"{name}={os.environ[name]}" for name in _VARIABLES if name in os.environ]
    return " ".join(found) or "none"


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []


def _isa() -> str:
    """Maker and arithmetic extensions: libraries choose kernels by both."""
    vendor, flags = "unknown", ""
    for line in _cpuinfo():
        name, _, value = line.partition(":")
        if name.strip() in ("vendor_id", "CPU implementer"):
            vendor = value.strip()
        if name.strip() in ("flags", "Features"):
            flags = " ".join(sorted(flag for flag in value.split() if _CPU_FLAGS.fullmatch(flag)))
            break
    return f"{vendor} {flags}".strip()


def _cache_sizes() -> str:
    """First- and second-level caches, by which libraries choose block sizes."""
    sizes = []
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index[0-9]")):
        try:
            level, kind, size = ((entry / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and int(level) <= 2:
            sizes.append(f"L{level}={size}")
    return " ".join(sizes) or "unknown"


def _build_setting(text: str, name: str) -> str:
    found = re.search(rf"{name}=([^,\s]+)", text)
    return found.group(1) if found else "unknown"
