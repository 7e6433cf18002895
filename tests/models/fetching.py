"""A fetch in a process of its own, to be killed: entry as JSON on standard input, stages on standard output."""

from __future__ import annotations

import sys

from kvsync.models.catalog import CATALOG
from kvsync.models.fetch import fetch
from tests.models.tiny_gguf import from_json


def main() -> None:
    model = from_json(sys.stdin.readline())
    CATALOG[model.name] = model
    fetch(model.name, lambda stage, *_: print(stage, flush=True))


if __name__ == "__main__":
    main()
