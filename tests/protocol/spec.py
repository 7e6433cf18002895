"""SPEC.md, read for tests: its sections and the codes in its tables."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "protocol" / "SPEC.md").read_text(encoding="utf-8")


def sections() -> set[str]:
    """The numbers of all sections, such as "4" and "4.2"."""
    return set(re.findall(r"^##+ (\d+(?:\.\d+)?) ", TEXT, re.MULTILINE))


def _codes(table: str) -> set[str]:
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([a-z0-9_]+\.[a-z0-9_]+)`", row)}


def _tables() -> list[str]:
    return TEXT.split("\n## 9 ")[1].split("\n## ")[0].split("A node may also answer")


def error_codes() -> set[str]:
    """The codes that this protocol defines."""
    return _codes(_tables()[0])


def node_codes() -> set[str]:
    """Further codes with which a node may answer."""
    return _codes(_tables()[1])
