"""Task files, and families of tasks that are generated from seeds."""

from kvsync.library.tasks.families import FAMILIES, corpus, generate
from kvsync.library.tasks.task import HELD_OUT, SPLITS, TRAIN, Task, parse_tasks, read_tasks, split_of, write_tasks

__all__ = [
    "FAMILIES",
    "HELD_OUT",
    "SPLITS",
    "TRAIN",
    "Task",
    "corpus",
    "generate",
    "parse_tasks",
    "read_tasks",
    "split_of",
    "write_tasks",
]
