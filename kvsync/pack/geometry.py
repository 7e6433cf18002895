"""Whether an artifact is laid out as a model's own would be: kinds of layers, windows, everything else.

Each has its code, since each alone would let bytes through that fit and mean something else. What passes is read
by this model's own geometry, never by the signed one. Knows no tensors.
"""

from __future__ import annotations

from kvsync_protocol.errors import MismatchError
from kvsync_protocol.layout import Layout


def check_geometry(ours: Layout, signed: Layout) -> None:
    """Raises MismatchError `mismatch.layer_kind`, `mismatch.window`, `mismatch.layout`."""
    check_kinds(ours, signed)
    check_windows(ours, signed)
    check_shapes(ours, signed)


def check_kinds(ours: Layout, signed: Layout) -> None:
    """Layers that see the past in another way. Raises MismatchError `mismatch.layer_kind`."""
    here, there = _by_layer(ours, "kind"), _by_layer(signed, "kind")
    wrong = [layer for layer in here.keys() & there.keys() if here[layer] != there[layer]]
    if wrong:
        first = min(wrong)
        raise MismatchError(
            "mismatch.layer_kind",
            f"layer {first} is {there[first]} in the artifact and {here[first]} in this model",
            layers=sorted(wrong),
        )


def check_windows(ours: Layout, signed: Layout) -> None:
    """Layers that see less or more of the past. Raises MismatchError `mismatch.window`."""
    here, there = _by_layer(ours, "window"), _by_layer(signed, "window")
    wrong = [layer for layer, window in here.items() if window and there.get(layer) and there[layer] != window]
    if wrong:
        first = min(wrong)
        raise MismatchError(
            "mismatch.window",
            f"layer {first} sees {there[first]} tokens in the artifact and {here[first]} in this model",
            layers=sorted(wrong),
        )


def check_shapes(ours: Layout, signed: Layout) -> None:
    """Everything that decides which bytes mean which number. Raises MismatchError `mismatch.layout`."""
    if _shapes(ours) != _shapes(signed):
        raise MismatchError("mismatch.layout", "the artifact's tensors are not laid out like this model's")


def _by_layer(layout: Layout, member: str) -> dict[int, object]:
    """What each layer's group says about itself under `member`, None where it says nothing."""
    return {layer: group.as_json().get(member) for group in layout.groups for layer in group.layers}


def _shapes(layout: Layout) -> tuple[object, ...]:
    groups = [
        {name: value for name, value in group.as_json().items() if name not in ("kind", "window")}
        for group in layout.groups
    ]
    return layout.tokens, layout.block_tokens, layout.vocab, layout.logits_dtype, groups
