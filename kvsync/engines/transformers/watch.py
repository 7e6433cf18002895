"""Notices that a model in memory is no longer the one whose fingerprint was taken.

Whoever holds a transformers model can write its weights, switch adapters, switch it to training, exchange modules,
patch `forward`, add hooks or choose another attention implementation, all after the fingerprint. What can be seen
without reading the weights is compared before every computation. What no fingerprint names but was there
from the start, such as a patched `forward`, is the canary's business.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from kvsync.engines.transformers.adapters import adapter_marks
from kvsync.errors import EngineError

SAMPLES: Final = 8
"""Elements of each tensor that `ModelWatch.sampled_equal` compares."""

_PLAIN: Final = (bool, int, float, str, type(None), torch.dtype)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
_TENSORS: Final = ("_parameters", "_buffers")
_CALLS: Final = ("forward", "_call_impl", "_compiled_call_impl")


class ModelWatch:
    """The state of a model at one moment, to be compared with later ones.

    `check` sees replaced tensors and writes that torch counts, exchanged, patched, hooked or switched modules and
    changed settings. Writes through `tensor.data` are not counted; `sampled_equal` sees those that reach most of
    a tensor, as merging an adapter does, and `Engine.verify_weights` all of them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._attention = _attention(model)
        self._modules = [_ModuleMark(name, module) for name, module in model.named_modules()]
        self._tensors = _holders(model)
        self._places = _tensor_marks(self._tensors)
        self._samples = _samples(model)

    @property
    def unchanged(self) -> bool:
        """Whether all that can be seen is as it was, samples of the weights included."""
        return not self._change() and self.sampled_equal()

    def sampled_equal(self) -> bool:
        """Whether a few elements of every parameter are as they were."""
        now = _samples(self._model)
        return now.keys() == self._samples.keys() and all(
            # Bytes, not values: a NaN equals itself, and two zeros may differ.
            torch.equal(now[kind].view(torch.uint8), before.view(torch.uint8))
            for kind, before in self._samples.items()
        )

    def check(self) -> None:
        """Raises EngineError `engine.weights_changed`, `engine.model_changed`."""
        change = self._change()
        if change == "weights":
            raise EngineError(
                "engine.weights_changed",
                "the model's weights were written after its fingerprint was taken",
                hint="make a new engine for the changed model",
            )
        if change:
            raise EngineError(
                "engine.model_changed",
                f"{change} of the model was changed after its fingerprint was taken",
                hint="change it back (model.eval(), remove hooks), or make a new engine for the changed model",
            )

    def _change(self) -> str:
        """What was changed, "" for nothing. Runs before every computation, so it only walks what it has kept."""
        if _attention(self._model) != self._attention:
            return "the attention or experts implementation"
        changed = next((mark.name for mark in self._modules if not mark.holds()), "")
        # Last, since exchanged modules bring their own tensors.
        return changed or ("" if _tensor_marks(self._tensors) == self._places else "weights")


class _ModuleMark:
    """What one module was: its children, tensors, hooks, patched calls and plain settings.

    Everything compared is kept, hence alive, so an identity cannot come back for another object.
    """

    __slots__ = (
        "_adapters",
        "_children",
        "_hooks",
        "_kind",
        "_module",
        "_names",
        "_slots",
        "_state",
        "_values",
        "name",
    )

    def __init__(self, name: str, module: Any) -> None:
        self.name = f"module {name}" if name else "the top module"
        self._module = module
        self._kind = type(module)
        self._state = state = vars(module)
        plain = [] if _rescales(module) else [key for key, value in state.items() if isinstance(value, _PLAIN)]
        self._names = (*_CALLS, *plain)
        self._values = tuple(map(state.get, self._names))
        self._hooks = [dict(state[kind]) for kind in _HOOKS]
        self._children = dict(state["_modules"])
        self._slots = [tuple(state[kind]) for kind in _TENSORS]
        self._adapters = adapter_marks(module)

    def holds(self) -> bool:
        """Whether it still is."""
        state = self._state
        return (
            tuple(map(state.get, self._names)) == self._values
            and state["_modules"] == self._children
            and [state[kind] for kind in _HOOKS] == self._hooks
            and [tuple(state[kind]) for kind in _TENSORS] == self._slots
            and type(self._module) is self._kind
            and (not self._adapters or adapter_marks(self._module) == self._adapters)
        )


def _attention(model: Any) -> object:
    """What the config chooses of several ways to compute the same."""
    config = getattr(model, "config", None)
    return tuple(getattr(config, name, None) for name in ("_attn_implementation", "_experts_implementation"))


def _holders(model: Any) -> list[tuple[dict[str, torch.Tensor | None], str]]:
    """Where each parameter and buffer hangs; a replaced tensor hangs in the same place."""
    return [
        (vars(module)[kind], name)
        for module in model.modules()
        for kind in _TENSORS
        if kind == "_parameters" or not _rescales(module)
        for name in vars(module)[kind]
    ]


def _tensor_marks(holders: list[tuple[dict[str, torch.Tensor | None], str]]) -> list[tuple[int, int]]:
    """Where tensors lie and how often they were written; the latter is not counted for inference tensors."""
    tensors = (holder.get(name) for holder, name in holders)
    return [
        (-1, -1) if tensor is None else (tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version)
        for tensor in tensors
    ]


def _rescales(module: Any) -> bool:
    """Whether a module's own forward writes its buffers: a function of each call, set anew by the next."""
    return "longrope" in str(getattr(module, "rope_type", ""))


def _samples(model: Any) -> dict[torch.dtype, torch.Tensor]:
    """A few elements of every parameter, evenly spread, one tensor for each dtype, on the CPU."""
    found: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in model.parameters():
        flat = parameter.detach().reshape(-1)
        found.setdefault(flat.dtype, []).append(flat[:: max(1, flat.numel() // SAMPLES)][:SAMPLES])
    return {dtype: torch.cat(parts).cpu() for dtype, parts in found.items()}
