"""Engines: a model's arithmetic behind one small interface. Importing this loads no torch."""

from kvsync.engines.engine import BlockSink, Context, Engine, Logits
from kvsync.engines.registry import as_engine, extend_shifted, load_engine

__all__ = ["BlockSink", "Context", "Engine", "Logits", "as_engine", "extend_shifted", "load_engine"]
