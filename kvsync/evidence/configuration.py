"""What a run is made with, and what of it would keep a stack from repeating itself.

The engine puts torch's own switches in place at every call. What it cannot take back are variables that libraries
below torch have read when they were loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvsync.engines.registry import check_engine
from kvsync.errors import UsageError
from kvsync.evidence.samples import check_count

_UNREPEATABLE: Final = {"OMP_DYNAMIC": "lets OpenMP choose another number of threads at every call"}
_OFF: Final = frozenset({"", "0", "false", "off", "no"})


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model under one set of choices, and the samples to draw. `dtype` None is as the model was saved."""

    model: str
    model_dir: Path
    dtype: str | None = None
    attention: str = "auto"
    device: str = "cpu"
    engine: str = "transformers"
    threads: int = 0
    samples: int = 50
    seed: int = 1
    generator: str = ""
    """Empty takes the one for this kind of model."""
    limit: int = 0
    """Longest sequence; 0 takes the model's own."""

    def __post_init__(self) -> None:
        """Raises EngineError `engine.unknown`, UsageError `samples.count`, before a model is loaded."""
        check_engine(self.engine)
        check_count(self.samples)

    def params(self) -> dict[str, Any]:
        """For a child process."""
        return {
            "model": self.model,
            "model_dir": str(self.model_dir),
            "dtype": self.dtype,
            "attention": self.attention,
            "device": self.device,
            "engine": self.engine,
            "threads": self.threads,
            "count": self.samples,
            "seed": self.seed,
            "generator": self.generator,
            "limit": self.limit,
        }


def check_environment(environment: Mapping[str, str] = os.environ) -> None:
    """Raises UsageError `prove.nondeterministic`, naming the variable."""
    for name, effect in _UNREPEATABLE.items():
        value = environment.get(name, "")
        if value.strip().lower() not in _OFF:
            raise UsageError("prove.nondeterministic", f"{name}={value} {effect}", hint=f"unset {name}", flag=name)
