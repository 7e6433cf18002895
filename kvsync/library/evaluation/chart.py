"""An evaluation as one figure: accuracy against decoded tokens, in the terminal and as PNG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvsync.evidence.plot import check_plotting, write_png
from kvsync_protocol import figure
from kvsync_protocol.trial import ASKED, STREAM

TITLE: Final = "accuracy against decoded tokens per problem"
_BAR: Final = 40


@dataclass(frozen=True, slots=True)
class Place:
    """One condition, or one window of a stream; shares in 0..1."""

    name: str
    problems: int
    accuracy: float
    low: float
    high: float
    tokens: float
    """Decoded ones per problem."""
    seconds: float


def places(summary: Mapping[str, Any]) -> list[Place]:
    """From the summary of a receipt of kind `library`: windows in their order, else conditions."""
    if "windows" in summary:
        return [_place(f"window {number}", each) for number, each in enumerate(summary["windows"], 1)]
    return [_place(name, summary["conditions"][name]) for name in ASKED if name in summary["conditions"]]


def _place(name: str, found: Mapping[str, Any]) -> Place:
    count = found["problems"]
    accuracy, low, high, seconds = (figure.read(found[each]) for each in ("accuracy", "low", "high", "seconds"))
    low, high = min(low, accuracy), max(high, accuracy)  # an interval's last bit may miss a share of 0 or 1
    return Place(name, count, accuracy, low, high, found["decoded"] / count, seconds / count)


def bars(found: list[Place]) -> list[str]:
    """Two bars a line: accuracy, and tokens as a part of the most."""
    width = max((len(each.name) for each in found), default=0)
    most = max((each.tokens for each in found), default=0.0) or 1.0
    lines = []
    for each in found:
        share, cost = round(_BAR * each.accuracy), round(_BAR * each.tokens / most)
        lines.append(f"{each.name:<{width}}  accuracy |{'█' * share}{' ' * bool(share)}{100 * each.accuracy:.1f} %")
        lines.append(f"{'':<{width}}  tokens   |{'▒' * cost}{' ' * bool(cost)}{each.tokens:.1f}")
    return lines


def save_png(summary: Mapping[str, Any], heading: str, path: Path) -> None:
    """Write the plot.

    Raises:
        UsageError: `plot.not_installed`.
        StoreError: `store.full`, `store.unwritable`.
    """
    check_plotting()
    from matplotlib.figure import Figure

    found = places(summary)
    drawn = Figure(figsize=(8, 4.5), layout="constrained")
    axes = drawn.add_subplot()
    share = [100 * each.accuracy for each in found]
    error = [
        [100 * (each.accuracy - each.low) for each in found],
        [100 * (each.high - each.accuracy) for each in found],
    ]
    if STREAM in summary["conditions"]:
        at = range(1, len(found) + 1)
        axes.errorbar(at, share, yerr=error, marker="o", capsize=3, color="tab:green")
        axes.set_ylabel("accuracy, % (95 % interval)", color="tab:green")
        axes.set_xlabel(f"window of {found[0].problems} problems")
        other = axes.twinx()
        other.plot(at, [each.tokens for each in found], marker="s", color="tab:orange")
        other.set_ylabel("decoded tokens per problem", color="tab:orange")
        other.set_ylim(bottom=0)
    else:
        for number, each in enumerate(found):
            sides = [[error[0][number]], [error[1][number]]]
            axes.errorbar([each.tokens], [share[number]], yerr=sides, marker="o", capsize=4, label=each.name)
        axes.set_xlabel("decoded tokens per problem")
        axes.set_ylabel("accuracy, % (95 % interval)")
        axes.set_xlim(left=0)
        axes.legend()
    axes.set_ylim(-2, 102)
    axes.set_title(heading)
    write_png(drawn, path)
