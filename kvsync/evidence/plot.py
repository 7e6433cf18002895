"""How far each reference is from the canonical computation: one figure, in the terminal and as PNG.

Own position is the only point at zero; on a logarithmic scale zero is a place of its own.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvsync.errors import UsageError
from kvsync.files import write_atomic
from kvsync_protocol import figure
from kvsync_protocol.exactness import ONE_SHOT, PATHS, UNCUT

TITLE: Final = "largest difference of two logits from the canonical computation"
_LABELS: Final = {
    "same_process": "(b) own position, same process",
    "fresh_process": "(c) own position, fresh process",
    "pulled": "(d) own position, from a peer",
    ONE_SHOT: "(e) one-shot prefill",
    UNCUT: "(f) without the cut at the end",
}
_BAR: Final = 40


@dataclass(frozen=True, slots=True)
class Point:
    """One line of the table and of the plot. Figures are as in the receipt's summary."""

    name: str
    exact_expected: bool
    samples: int
    refused: int
    equal: int
    positions: int
    argmax: int
    kl_max: float
    max_abs: float

    @property
    def label(self) -> str:
        return _LABELS.get(self.name, f"(g) shifted by {self.name.removeprefix('shift_')}")

    @property
    def agreement(self) -> str:
        """Share of new positions whose most likely token agrees; rounded down, so that 100 % is all of them."""
        if not self.positions:
            return "-"
        return f"{math.floor(10_000 * self.argmax / self.positions) / 100:g} %"


def points(summary: Mapping[str, Any]) -> list[Point]:
    """From the summary of an exactness receipt, grafts first."""
    found = [
        _point(name, part, True, summary["samples"], summary["positions"])
        for name, part in summary["paths"].items()
        if name in PATHS
    ]
    references = summary["references"].items()
    found += [_point(name, part, False, part["samples"], part["positions"]) for name, part in references]
    return sorted(found, key=lambda point: _order(point.name))


def _point(name: str, part: Mapping[str, Any], exact_expected: bool, samples: int, positions: int) -> Point:
    return Point(
        name=name,
        exact_expected=exact_expected,
        samples=samples,
        refused=part.get("refused", 0),
        equal=part["equal"],
        positions=positions,
        argmax=part["argmax"],
        kl_max=figure.read(part["kl_max"]),
        max_abs=figure.read(part["max_abs"]),
    )


def _order(name: str) -> tuple[int, int]:
    known = list(_LABELS)
    return (known.index(name), 0) if name in known else (len(known), int(name.removeprefix("shift_")))


def bars(found: Sequence[Point]) -> list[str]:
    """The plot as lines of text, on a logarithmic scale."""
    shown = [point for point in found if point.samples]
    values = [point.max_abs for point in shown if point.max_abs]
    low = math.log10(min(values)) - 1 if values else 0.0
    span = (math.log10(max(values)) - low) if values else 1.0
    width = max((len(point.label) for point in shown), default=0)
    lines = []
    for point in shown:
        length = round(_BAR * (math.log10(point.max_abs) - low) / span) if point.max_abs else 0
        value = f"{point.max_abs:.1e}" if point.max_abs else "0"
        lines.append(f"{point.label:<{width}}  |{'█' * length}{' ' if length else ''}{value}")
    return lines


def check_plotting() -> None:
    """Raises UsageError `plot.not_installed` without matplotlib."""
    from importlib.util import find_spec

    if find_spec("matplotlib") is None:
        raise UsageError("plot.not_installed", "a PNG needs matplotlib", hint="pip install 'kvsync[plot]'")


def save_png(found: Sequence[Point], heading: str, path: Path) -> None:
    """Write the plot.

    Raises:
        UsageError: `plot.not_installed`.
        StoreError: `store.full`, `store.unwritable`.
    """
    check_plotting()
    from matplotlib.figure import Figure

    shown = [point for point in found if point.samples]
    values = [point.max_abs for point in shown if point.max_abs]
    drawn = Figure(figsize=(8, 0.5 * len(shown) + 1.6), layout="constrained")
    axes = drawn.add_subplot()
    colours = ["tab:green" if point.exact_expected else "tab:orange" for point in shown]
    axes.barh([point.label for point in shown], [point.max_abs for point in shown], color=colours)
    axes.set_xscale("symlog", linthresh=min(values) / 10 if values else 1.0)
    axes.set_xlim(0, 20 * max(values, default=1.0))  # room for the figures behind the bars
    for row, point in enumerate(shown):
        text = f"{point.max_abs:.1e}" if point.max_abs else f"0: {point.equal} of {point.samples} equal"
        axes.annotate(f" {text}", (point.max_abs, row), va="center")
    axes.invert_yaxis()
    axes.set_xlabel(TITLE)
    axes.set_title(heading)
    write_png(drawn, path)


def write_png(drawn: Any, path: Path) -> None:
    """Write a matplotlib figure. Raises StoreError `store.full`, `store.unwritable`."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    write_atomic(path, buffer.getvalue(), mode=0o644)
