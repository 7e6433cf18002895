"""SPEC.md and the texts that continue it, read for tests: sections and the codes in their tables."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "protocol" / "SPEC.md").read_text(encoding="utf-8")
KEYS = (ROOT / "protocol" / "KEYS.md").read_text(encoding="utf-8")
COMPUTE = (ROOT / "protocol" / "COMPUTE.md").read_text(encoding="utf-8")
BUNDLE = (ROOT / "protocol" / "BUNDLE.md").read_text(encoding="utf-8")
UNENCRYPTED = (ROOT / "protocol" / "UNENCRYPTED.md").read_text(encoding="utf-8")
LIBRARY = (ROOT / "protocol" / "LIBRARY.md").read_text(encoding="utf-8")


def sections() -> set[str]:
    """The numbers of all sections, such as "4" and "4.2"."""
    return set(re.findall(r"^##+ (\d+(?:\.\d+)?) ", TEXT, re.MULTILINE))


def key_sections() -> set[str]:
    """The same of KEYS.md."""
    return set(re.findall(r"^## (\d+) ", KEYS, re.MULTILINE))


def _codes(table: str) -> set[str]:
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    found = {code for row in rows for code in re.findall(r"`([a-z0-9_]+\.[a-z0-9_]+)`", row)}
    for kind in (kind for row in rows for kind in re.findall(r"`\*\.([a-z]+)`", row)):
        families = re.findall(r"[a-z]+", re.findall(r"`\*` stands each of ([a-z, \n]+)\.", TEXT)[0])
        found |= {f"{family}.{kind}" for family in families if (family, kind) != ("envelope", "unknown")}
    return found


def _tables(number: int) -> set[str]:
    """The codes of the first table of each text, or of the second."""
    parts = [
        (*text.split(heading)[1].split("\n## ")[0].split("A node may also answer"), "")[number]
        for text, heading in (
            (TEXT, "\n## 9 "),
            (KEYS, "\n## 6 "),
            (LIBRARY, "\n## 4 "),
            (BUNDLE, "\n## 3 "),
            (COMPUTE, "\n## Error codes"),
            (UNENCRYPTED, "\n## 5 "),
        )
    ]
    return set().union(*map(_codes, parts))


def error_codes() -> set[str]:
    """The codes that this protocol defines."""
    return _tables(0)


def node_codes() -> set[str]:
    """Further codes with which a node may answer."""
    return _tables(1)
