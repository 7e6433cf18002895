"""What loading and wrapping have in common: from a model in memory with its weights' digest to an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsync.engines.transformers.adapters import adapters_text
from kvsync.engines.transformers.compatibility import compatibility, template_digest, tokenizer_digest
from kvsync.engines.transformers.determinism import Determinism
from kvsync.engines.transformers.engine import LoadedModel, TransformersEngine
from kvsync.engines.transformers.forward import Forward
from kvsync.engines.transformers.numerics import numerics_fields
from kvsync.engines.transformers.probe import probe
from kvsync.engines.transformers.watch import ModelWatch
from kvsync.engines.transformers.weights import weights_digest
from kvsync_protocol.digest import Digest
from kvsync_protocol.layout import DType
from kvsync_protocol.limits import MAX_TOKENS
from kvsync_protocol.schedule import Schedule


def assemble(
    model: Any,
    tokenizer: Any,
    model_dir: Path | None,
    weights: Digest,
    determinism: Determinism,
    attention: str,
    dtype: DType,
    block_tokens: int,
    snapshot_blocks: int,
    *,
    remember: bool,
) -> TransformersEngine:
    """Probe the model, take both fingerprints, run or remember the canary.

    Args:
        model_dir: where the tokenizer's files lie, None when it has none.
        remember: whether the canary may come from the cache. Only for a model that nobody else has had in hand:
            a patched one has the same weights, the same config and another arithmetic.

    Raises:
        EngineError: `engine.*`, when the model turns out to keep or return what is not understood.
    """
    model.eval()
    forward = Forward(model, determinism.device)
    schedule = Schedule(block_tokens)
    shape = probe(forward, model.config, snapshot_blocks)
    template = template_digest(tokenizer)
    adapters = adapters_text(model)
    loaded = LoadedModel(
        forward=forward,
        config=model.config,
        tokenizer=tokenizer,
        shape=shape,
        determinism=determinism,
        watch=ModelWatch(model),
        dtype=dtype,
        max_tokens=int(getattr(model.config, "max_position_embeddings", None) or MAX_TOKENS),
        token_limit=model.get_input_embeddings().weight.shape[0],
        template=template,
        weights=weights,
        adapters=adapters,
        hash_weights=lambda: weights_digest(model),
        read_adapters=lambda: adapters_text(model),
    )
    compatible = compatibility(
        config=model.config,
        model_class=type(model).__name__,
        groups=shape.groups,
        weights=weights,
        adapters=adapters,
        tokenizer=tokenizer_digest(tokenizer, model_dir),
        template=template,
        block_tokens=block_tokens,
    )
    numerics = numerics_fields(
        determinism=determinism, attention=attention, dtype=dtype, schedule=schedule, groups=shape.groups
    )
    return TransformersEngine(loaded, schedule, compatible, numerics, remember=remember)
