"""Notices that a model in memory is no longer the one whose fingerprint was taken.

Whoever holds a transformers model can write its weights, switch it to training, exchange modules, patch
`forward`, add hooks or choose another attention implementation, all after the fingerprint. What can be seen
without reading the weights is compared before every computation. What no fingerprint names but was there
from the start, such as a patched `forward`, is the canary's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch

from kvsync.errors import EngineError

SAMPLES: Final = 8
"""Elements of each tensor that `ModelWatch.sampled_equal` compares."""

_PLAIN: Final = (bool, int, float, str, type(None), torch.dtype)
_HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks")
_CALLS: Final = ("forward", "_call_impl", "_compiled_call_impl")


class ModelWatch:
    """The state of a model at one moment, to be compared with later ones.

    `check` sees replaced tensors and writes that torch counts, exchanged, patched, hooked or switched modules and
    changed settings. Writes through `tensor.data` are not counted; `sampled_equal` sees those that reach most of
    a tensor, as merging an adapter does, and `Engine.verify_weights` all of them.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._tensors = list(_tensor_marks(model))
        self._modules = list(_module_marks(model))
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
        if self._tensors != list(_tensor_marks(self._model)):
            return "weights"
        now = list(_module_marks(self._model))
        if len(now) != len(self._modules):
            return "the modules"
        # The marks keep what they compare alive, so an identity cannot come back for another object.
        return next((old[0] for old, new in zip(self._modules, now, strict=True) if old != new), "")


class _Same:
    """A value that equals only itself."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    __hash__ = None  # type: ignore[assignment]


def _tensor_marks(model: Any) -> Iterator[tuple[int, int]]:
    for parameter in model.parameters():
        yield _mark(parameter)
    for module in model.modules():
        if not _rescales(module):
            for buffer in module.buffers(recurse=False):
                yield _mark(buffer)


def _mark(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor lies and how often it was written; the latter is not counted for inference tensors."""
    return tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version


def _module_marks(model: Any) -> Iterator[tuple[Any, ...]]:
    config = getattr(model, "config", None)
    yield "the attention implementation", getattr(config, "_attn_implementation", None)
    for name, module in model.named_modules():
        state = vars(module)
        plain = () if _rescales(module) else tuple(i for i in state.items() if isinstance(i[1], _PLAIN))
        calls = tuple(_Same(state.get(call)) for call in _CALLS)
        hooks = tuple(_Same(hook) for kind in _HOOKS for hook in state[kind].values())
        yield f"module {name}" if name else "the top module", _Same(module), type(module), calls, hooks, plain


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
