"""`Recipe`: which strategies answer in which order, what lets them try, and how far each may go. Strict TOML."""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kvsync.errors import UsageError
from kvsync.files import read_limited
from kvsync_protocol.limits import KiB

EXACT: Final = "exact"
RELATED: Final = "related"
GREEDY: Final = "greedy"
SAMPLED: Final = "sampled"
STRATEGIES: Final = (EXACT, RELATED, GREEDY, SAMPLED)
DEPOSIT: Final = "deposit"
"""What storing a solution costs stands beside the strategies under this name."""
DECODE: Final = "decode"
STORED: Final = "stored"
MAX_RECIPE_BYTES: Final = 64 * KiB


@dataclass(frozen=True, slots=True)
class Recipe:
    """The members of the file, all optional."""

    order: tuple[str, ...] = STRATEGIES
    recall: str = DECODE
    """exact: `decode` asks again behind the example and falls back on the stored text; `stored` takes that."""
    max_tokens: int = 512
    """Longest answer of one attempt."""
    related_entries: int = 1
    """related: how many worked examples are tried, one at a time."""
    related_overlap: float = 0.3
    """related: the part of the problem's words that the example's problem must share."""
    samples: int = 4
    rows: int = 1
    """sampled: how many attempts are decoded side by side. All of a row are paid for, also when one passes."""
    temperatures: tuple[float, ...] = (0.5, 0.8, 1.0)
    """sampled: of the attempts in turn."""
    top_p: float = 0.95
    seed: int = 0
    stops: tuple[str, ...] = ()
    """Texts at which an answer ends, beside the model's own end."""
    deposit: bool = True
    """Whether a newly verified solution is stored."""

    def __post_init__(self) -> None:
        """Raises UsageError `recipe.value`."""
        if not self.order or len(set(self.order)) < len(self.order) or not set(self.order) <= set(STRATEGIES):
            raise _bad("order", f"lists some of {', '.join(STRATEGIES)}, each once")
        if self.recall not in (DECODE, STORED):
            raise _bad("recall", f'is "{DECODE}" or "{STORED}"')
        for name, low, high in (
            ("max_tokens", 1, 2**24),
            ("related_entries", 1, 64),
            ("related_overlap", 0, 1),
            ("samples", 1, 10_000),
            ("rows", 1, 256),
            ("seed", 0, 2**63),
        ):
            if not low <= getattr(self, name) <= high:
                raise _bad(name, f"lies in {low}..{high}")
        if not self.temperatures or not all(0 < each <= 100 for each in self.temperatures):
            raise _bad("temperatures", "are above 0 and at most 100")
        if not 0 < self.top_p <= 1:
            raise _bad("top_p", "is above 0 and at most 1")
        if not all(self.stops):
            raise _bad("stops", "are not empty")

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read a file.

        Raises:
            NotFoundError: `file.missing`; StoreError `file.*`.
            UsageError: `recipe.syntax`, `recipe.unknown`, `recipe.type`, `recipe.value`.
        """
        data = read_limited(path, MAX_RECIPE_BYTES, what="the recipe")
        try:
            found = tomllib.loads(data.decode())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise UsageError("recipe.syntax", f"{path} is not TOML: {error}") from error
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        for name, value in found.items():
            if name not in defaults:
                raise UsageError("recipe.unknown", f"{path}: unknown member {name!r}", hint=", ".join(defaults))
            found[name] = _typed(name, value, defaults[name])
        return cls(**found)


def _typed(name: str, value: object, default: object) -> object:
    """`value` of the default's type; a whole number may stand for a fraction, an array for a tuple."""
    if isinstance(default, tuple):
        if not isinstance(value, list):
            raise UsageError("recipe.type", f"{name} is not an array")
        first = default[0] if default else ""
        return tuple(_typed(name, item, first) for item in value)
    if isinstance(default, float) and type(value) is int:
        return float(value)
    if type(value) is not type(default):
        raise UsageError("recipe.type", f"{name} is not of type {type(default).__name__}")
    return value


def _bad(name: str, what: str) -> UsageError:
    return UsageError("recipe.value", f"{name} {what}")
