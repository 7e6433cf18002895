"""The options that choose a model, and the engine they mean. Loads torch only when the engine is opened."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

if TYPE_CHECKING:
    from kvsync.cli._command import Run
    from kvsync.engines import Engine
    from kvsync_protocol.layout import DType

DEFAULT_MODEL: Final = "smollm2-135m"


class Precision(enum.StrEnum):
    """Element types by the names people use."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    @property
    def dtype(self) -> DType:
        from kvsync_protocol.layout import DType

        return {Precision.FP32: DType.F32, Precision.BF16: DType.BF16, Precision.FP16: DType.F16}[self]


ModelOption = Annotated[
    str, typer.Option("--model", metavar="MODEL", help="A name from `kvsync model ls`, or a model directory.")
]
DTypeOption = Annotated[
    Precision | None,
    typer.Option("--dtype", help="Weights, arithmetic and KV state; default as the model was saved."),
]
DeviceOption = Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or cuda:N.")]


def model_path(model: str) -> Path:
    """The model's directory. Raises NotFoundError `model.*`."""
    from kvsync.models import resolve

    return resolve(model).absolute()


def open_engine(run: Run, model: str, precision: Precision | None, device: str) -> Engine:
    """Load a model under this node's settings.

    Raises:
        NotFoundError: `model.*`.
        EngineError: `engine.*`.
    """
    from kvsync.engines import load_engine

    dtype = None if precision is None else precision.dtype
    return load_engine(model_path(model), dtype=dtype, device=device, threads=run.settings().threads)
