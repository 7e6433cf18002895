"""`Trend`: seconds as a sum of two parts, learned from what really happened, the latest counting most.

    seconds ≈ first · α + second · β,   α, β >= 0

Knows no tokens and no bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final

from kvsync_protocol import figure
from kvsync_protocol.errors import MalformedError

KEEP: Final = 0.8
"""What an observation counts for when one more has come: about five of them make a prediction."""
_ALIKE: Final = 1e-6
"""Observations whose two parts are so nearly proportional tell only of the first."""
_LARGEST: Final = 1e12
_TINY: Final = 1e-12


@dataclass(frozen=True, slots=True)
class Trend:
    """Decaying sums of products. `Trend.parse(t.spell()) == t`; predictions are finite and never negative.

    The first part is the one that grows with the work (tokens, bytes); it explains everything while the observations
    do not tell the two apart.
    """

    aa: float = 0.0
    ab: float = 0.0
    bb: float = 0.0
    at: float = 0.0
    bt: float = 0.0

    def learn(self, first: float, second: float, seconds: float) -> Trend:
        """With one more observation; one of less than 1 of the first part is none.

        Larger ones count for more: what is measured is seconds, not rates.
        """
        if first < 1 or not all(0 <= part <= _LARGEST for part in (first, second, seconds)):
            return self
        new = (first * first, first * second, second * second, first * seconds, second * seconds)
        return Trend(*(KEEP * old + added for old, added in zip(astuple(self), new, strict=True)))

    @property
    def empty(self) -> bool:
        return self.aa == 0

    def rates(self) -> tuple[float, float]:
        """Seconds per unit of the first and of the second part: least squares with neither below zero."""
        if self.empty:
            return 0.0, 0.0
        alone = self.at / self.aa, 0.0
        determinant = self.aa * self.bb - self.ab * self.ab
        if self.bb < _TINY or determinant <= _ALIKE * self.aa * self.bb:
            return alone
        first = (self.at * self.bb - self.bt * self.ab) / determinant
        second = (self.bt * self.aa - self.at * self.ab) / determinant
        if second < 0:
            return alone
        return (0.0, self.bt / self.bb) if first < 0 else (first, second)

    def predict(self, first: float, second: float) -> float:
        """Seconds."""
        alpha, beta = self.rates()
        return alpha * first + beta * second

    def spell(self) -> list[str]:
        """The sums as text, exactly."""
        return [figure.spell(value) for value in astuple(self)]

    @classmethod
    def parse(cls, found: object) -> Trend:
        """Raises MalformedError `receipt.figure`, `costs.trend`."""
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != 5:
            raise MalformedError("costs.trend", "a trend has five figures")
        values = [figure.read(text) for text in found]
        if min(values) < 0 or max(values) > 10 * _LARGEST**2 or (any(values) and values[0] < 1):
            raise MalformedError("costs.trend", "these are no sums of products")
        return cls(*values)
