"""Models refused before any compute because of what their config says about state or attention.

What the cache's layer classes say is checked in `layers`; here stands what they do not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from kvsync.errors import EngineError

AUTO: Final = "auto"
ATTENTION: Final = ("sdpa", "eager")
LAYER_TYPES: Final = frozenset(
    {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "linear_attention",
        "conv",
        "hybrid",
        "hybrid_sliding",
        "moe",
        "mlp",
    }
)
ROPE_TYPES: Final = frozenset({"default", "linear", "llama3", "longrope", "proportional", "yarn"})
"""Scalings that are a function of one call alone. "dynamic" keeps the longest length it has seen in the model,
so what it computes depends on what was computed before."""

_MODALITIES: Final = ("vision_config", "audio_config", "speech_config", "video_config")
_FLAGS: Final = (
    ("is_encoder_decoder", "an encoder-decoder model"),
    ("use_bidirectional_attention", "attention to later tokens"),
)


def check_config(config: Any) -> None:
    """Refuse a model by the name of what is not understood.

    Raises:
        EngineError: `engine.unsupported_model`, `engine.unsupported_layer`, `engine.unsupported_rope`,
            `engine.quantised`.
    """
    kind = str(getattr(config, "model_type", "unknown"))
    if any(getattr(config, name, None) is not None for name in _MODALITIES) or config.get_text_config() is not config:
        raise EngineError("engine.unsupported_model", f"{kind} takes more than text", model_type=kind)
    for name, meaning in _FLAGS:
        if getattr(config, name, None):
            raise EngineError(
                "engine.unsupported_model", f"{kind} uses {meaning} ({name})", model_type=kind, setting=name
            )
    if getattr(config, "quantization_config", None) is not None:
        raise EngineError(
            "engine.quantised",
            "quantised weights are unpacked by kernels whose results are not recorded here",
            hint="save the model dequantised",
        )
    for layer_type in getattr(config, "layer_types", None) or ():
        if layer_type not in LAYER_TYPES:
            raise EngineError(
                "engine.unsupported_layer",
                f"{kind} has layers of type {layer_type}",
                hint="full, sliding-window, chunked and recurrent layers can be grafted exactly",
                layer_class=layer_type,
            )
    for rope_type in _rope_types(getattr(config, "rope_parameters", None)):
        if rope_type not in ROPE_TYPES:
            raise EngineError(
                "engine.unsupported_rope",
                f"{kind} scales positions by {rope_type!r}, which depends on earlier calls or is unknown",
                rope_type=rope_type,
            )


def check_attention(name: str) -> None:
    """Raises EngineError `engine.attention` for an implementation that was not shown to repeat itself."""
    if name not in ATTENTION:
        raise EngineError(
            "engine.attention", f"attention {name!r} is not supported", hint=f"use one of {', '.join(ATTENTION)}"
        )


def _rope_types(parameters: Any) -> Iterator[str]:
    """Of one parameter set, or of one per layer type."""
    if not isinstance(parameters, dict):
        return
    if "rope_type" in parameters or "type" in parameters:
        yield str(parameters.get("rope_type", parameters.get("type")))
        return
    for inner in parameters.values():
        yield from _rope_types(inner)
