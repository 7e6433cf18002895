"""Numbers with a fraction, in JSON that has none: they travel as whole millionths under `<name>_e6`.

    {"seconds": 1.25, "bytes": 7}  ⇄  {"seconds_e6": 1250000, "bytes": 7}

`unpack(pack(x)) == x` for values that are whole millionths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SUFFIX: Final = "_e6"
MILLION: Final = 1_000_000


def pack(values: Mapping[str, object]) -> dict[str, object]:
    """The top level of a result, without floats."""
    return {
        **{name: value for name, value in values.items() if not isinstance(value, float)},
        **{name + SUFFIX: round(value * MILLION) for name, value in values.items() if isinstance(value, float)},
    }


def unpack(values: Mapping[str, object]) -> dict[str, object]:
    """What was packed."""
    found: dict[str, object] = {}
    for name, value in values.items():
        if name.endswith(SUFFIX) and isinstance(value, int):
            found[name.removesuffix(SUFFIX)] = value / MILLION
        else:
            found[name] = value
    return found
