"""LoRA adapters that peft has put into a model: found, judged, and named by what they compute.

An adapter adds `scale · B(A(x))` to a linear layer. What counts is which ones act, in which order, by what numbers
and how strongly; their names do not count. Works on the modules as they are, so peft itself need not be imported.
Everything of peft's that is not plain LoRA is refused by name.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from typing import Any, Final

from kvsync.engines.transformers.dtypes import as_bytes
from kvsync.errors import EngineError
from kvsync_protocol.digest import Digest

NONE: Final = "none"
_PARTS: Final = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")
_TAG: Final = b"kvsync/adapter/1"


def base_of(model: Any) -> Any:
    """The transformers model inside a peft model, with the adapters in its layers; any other model as it is.

    Raises:
        EngineError: `engine.adapter` for adapters that do more than change layers.
    """
    configs = getattr(model, "peft_config", None)
    if not type(model).__module__.startswith("peft.") or not isinstance(configs, dict):
        return model
    for config in configs.values():
        kind = str(getattr(config.peft_type, "value", config.peft_type))
        if kind != "LORA" or getattr(config, "alora_invocation_tokens", None):
            name = "activated LoRA" if kind == "LORA" else kind
            raise _refused(f"adapters of type {name} are not understood here")
    return model.base_model.model


def adapters_text(model: Any) -> str:
    """The fingerprint's field: digest and scale of every acting adapter, in the order in which they act.

    Raises:
        EngineError: `engine.adapter` for layers that are not plain LoRA, or that act differently from each other.
    """
    orders = {tuple(_acting(module)) for _, module in _layers(model)} - {()}
    if not orders:
        return NONE
    if len(orders) > 1:
        raise _refused("adapters act in another order, or not at all, in some of the layers that have them")
    return ", ".join(_describe(model, adapter) for adapter in orders.pop())


def is_adapter(name: str) -> bool:
    """Whether a tensor of this name in a model with adapters belongs to one of them."""
    return not set(name.split(".")).isdisjoint(_PARTS)


def plain_name(name: str) -> str:
    """A tensor's name in the model without adapters."""
    return name.replace(".base_layer.", ".")


def has_adapters(model: Any) -> bool:
    return any(True for _ in _layers(model))


def adapter_marks(module: Any) -> tuple[object, ...]:
    """What peft changes in a layer when adapters are switched, merged, disabled or scaled; () for other modules."""
    if not hasattr(module, "merged_adapters"):
        return ()
    return (
        tuple(module.active_adapters),
        tuple(module.merged_adapters),
        bool(module.disable_adapters),
        tuple(sorted(getattr(module, "scaling", {}).items())),
    )


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    """Modules of peft's that hold adapters, in name order. Raises EngineError `engine.adapter`."""
    for name, module in sorted(model.named_modules(), key=lambda item: item[0]):
        if hasattr(module, "merged_adapters"):
            variants = {*getattr(module, "lora_variant", {}).values()}
            dora = any(getattr(module, "use_dora", {}).values())
            if not hasattr(module, "lora_A") or variants or dora:
                raise _refused(f"{name} is a {type(module).__module__}.{type(module).__name__}, not plain LoRA")
            yield name, module


def _acting(module: Any) -> list[str]:
    if module.disable_adapters and module.merged_adapters:
        raise _refused("merged adapters are disabled: the next call would take them out of the weights")
    if module.disable_adapters or module.merged_adapters:
        return []  # what is merged is in the weights
    return [name for name in module.active_adapters if name in module.scaling]


def _describe(model: Any, adapter: str) -> str:
    state = hashlib.sha256(_TAG)
    scales = set()
    for name, module in _layers(model):
        if adapter not in module.scaling:
            continue
        scale = float(module.scaling[adapter])
        scales.add(scale)
        for part in _PARTS:
            held = getattr(module, part)
            if adapter in held:
                inner = held[adapter]
                tensors = sorted(inner.named_parameters()) if hasattr(inner, "named_parameters") else [("", inner)]
                for inner_name, tensor in tensors:
                    _add(state, f"{name}.{part}.{inner_name} {scale.hex()}", tensor)
    return f"lora {Digest(state.digest())} scale {' '.join(map(repr, sorted(scales)))}"


def _add(state: Any, name: str, tensor: Any) -> None:
    data = as_bytes(tensor.detach().cpu().contiguous())
    head = f"{name}\0{tensor.dtype}\0{','.join(map(str, tensor.shape))}".encode()
    state.update(struct.pack(">QQ", len(head), data.nbytes) + head)
    state.update(data)


def _refused(reason: str) -> EngineError:
    return EngineError("engine.adapter", reason, hint="merge the adapter into its base model (merge_and_unload)")
