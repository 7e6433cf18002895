"""Checks that a built wheel holds exactly kvsync's three import packages and nothing else.

Usage: check_wheel.py WHEEL. `protocol` and `registry` as top-level names would load second copies of
classes that then are not equal to each other; tests and vectors belong into the source archive only.
"""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

PACKAGES = {"kvsync", "kvsync_protocol", "kvsync_registry"}


def problems(wheel: Path) -> list[str]:
    """What is wrong with the wheel, one line each."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = []
    tops = {name.split("/", 1)[0] for name in names}
    packages = {top for top in tops if not top.endswith(".dist-info")}
    if packages != PACKAGES:
        found.append(f"top levels are {sorted(packages)}, not {sorted(PACKAGES)}")
    if len(tops - packages) != 1:
        found.append(f"{len(tops - packages)} .dist-info directories")
    found += [f"{package}/py.typed is missing" for package in sorted(PACKAGES) if f"{package}/py.typed" not in names]
    found += [
        f"{name} does not belong into a wheel" for name in names if Path(name).suffix in {".pyc", ".key", ".gguf"}
    ]
    return found


def main() -> int:
    found = problems(Path(sys.argv[1]))
    for line in found:
        sys.stderr.write(f"wheel: {line}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
