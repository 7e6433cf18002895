"""Real KV state for benchmarks: an artifact of the specification's text, computed by a real model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvsync.demo.run import specification
from kvsync.engines import load_engine
from kvsync.engines.engine import Engine
from kvsync.graft import deposit
from kvsync.models import resolve
from kvsync.store import Store, StoredArtifact
from kvsync_protocol.layout import DType
from kvsync_protocol.signing import SigningKey


def engine_of(model: str, dtype: str) -> Engine:
    """The engine of a model of the catalogue or of a directory."""
    return load_engine(resolve(model), dtype=DType(dtype))


def compute(store: Store, key: SigningKey, engine: Engine, tokens: int) -> StoredArtifact:
    """Store the artifact of `tokens` tokens of the specification, from the start as often as needed."""
    text = engine.encode(specification().read_text("utf-8"))
    return deposit(store, engine, key, (text * (tokens // len(text) + 1))[:tokens])


def write(result: object, path: Path | None) -> None:
    """A result as JSON, to standard output or into a file."""
    text = json.dumps(result, indent=1) + "\n"
    if path is None:
        sys.stdout.write(text)
    else:
        path.write_text(text)
