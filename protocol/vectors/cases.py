"""How a vector is written down: one thing tested per case, and the failure it must give."""

from __future__ import annotations

from typing import Any

import reference as ref


class Cases:
    """The cases of one file. Names are unique in it; bytes are written as hex."""

    def __init__(self, about: str) -> None:
        self.about = about
        self.cases: list[ref.Json] = []

    def ok(self, name: str, op: str, out: object = None, **inputs: object) -> None:
        """A case that must succeed, giving `out` where the operation gives something."""
        case = {"name": name, "op": op, "in": _plain(inputs), "expect": "ok"}
        self._add(case if out is None else {**case, "out": _plain(out)})

    def bad(self, name: str, op: str, code: str, **inputs: object) -> None:
        """A case that must fail with `code`."""
        self._add({"name": name, "op": op, "in": _plain(inputs), "expect": code})

    def _add(self, case: ref.Json) -> None:
        if case["name"] in {other["name"] for other in self.cases}:
            raise ValueError(f"two cases are named {case['name']!r}")
        self.cases.append(case)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
