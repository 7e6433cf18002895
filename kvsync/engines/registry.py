"""From a directory or a loaded model to an engine. The engine's own libraries load only here, when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from kvsync.engines.engine import Context, Engine, Logits
from kvsync.errors import EngineError
from kvsync_protocol.layout import DType
from kvsync_protocol.limits import BLOCK_TOKENS
from kvsync_protocol.schedule import Schedule

ENGINES = ("transformers",)


def load_engine(
    model_dir: Path,
    *,
    dtype: DType | None = None,
    device: str = "cpu",
    attention: str = "auto",
    threads: int = 0,
    name: str = "transformers",
    block_tokens: int = BLOCK_TOKENS,
    reverify: bool = False,
) -> Engine:
    """Load a model directory: config, safetensors weights, tokenizer.

    Args:
        dtype: of weights, arithmetic and KV state; None for the one the model was saved in.
        device: "cpu", "cuda" or "cuda:N".
        attention: "sdpa", "eager", or "auto" for what transformers takes by itself: sdpa where the model allows it.
        threads: torch's intra-op threads; 0 takes as many as torch has now. Part of the numerics fingerprint.
        reverify: hash the weights even when their digest is remembered and no file has changed.

    Raises:
        NotFoundError: `model.missing`.
        EngineError: `engine.*`, one code for each reason why this model cannot run here exactly.
    """
    check_engine(name)
    _check_installed()
    from kvsync.engines.transformers import load

    return load(
        model_dir,
        dtype=dtype,
        device=device,
        attention=attention,
        threads=threads,
        block_tokens=block_tokens,
        reverify=reverify,
    )


def as_engine(model: Any, *, threads: int = 0, tokenizer: Any = None) -> Engine:
    """An engine as it is; a loaded transformers model as an engine, made once per model object.

    A model whose weights were written since gets a new engine, with new fingerprints.

    Raises:
        EngineError: `engine.unsupported_model`, and as `load_engine`.
    """
    if hasattr(model, "fingerprints") and hasattr(model, "restore"):
        return cast(Engine, model)
    _check_installed()
    from kvsync.engines.transformers import wrap

    return wrap(model, threads=threads, tokenizer=tokenizer)


def extend_shifted(engine: Engine, context: Context, tokens: Sequence[int], schedule: Schedule, shift: int) -> Logits:
    """`engine.extend` with everything moved by `shift` positions through re-rotated keys: never exact.

    Raises:
        EngineError: `engine.shift` with the reason when the engine or its model cannot.
    """
    _check_installed()
    from kvsync.engines.transformers import shifted
    from kvsync.engines.transformers.engine import TransformersEngine

    if not isinstance(engine, TransformersEngine):
        raise EngineError("engine.shift", f"the {engine.name} engine moves no keys")
    return shifted.extend_shifted(engine, context, tokens, schedule, shift)


def check_engine(name: str) -> None:
    """Raises EngineError `engine.unknown`."""
    if name not in ENGINES:
        raise EngineError("engine.unknown", f"there is no engine {name!r}", hint=f"known: {', '.join(ENGINES)}")


def _check_installed() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise EngineError(
            "engine.not_installed",
            f"this needs {' and '.join(missing)}",
            hint="pip install 'kvsync[torch]'",
        )
