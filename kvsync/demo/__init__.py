"""`kvsync demo`: the main job end to end on one machine, with real processes and every check on."""

from kvsync.demo.result import DemoResult
from kvsync.demo.run import DemoOptions, run_demo

__all__ = ["DemoOptions", "DemoResult", "run_demo"]
