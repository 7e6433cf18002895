"""How much a sandboxed program may use, and the three isolations that a host may be unable to give.

Knows no system call.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

from kvsync_protocol.limits import KiB, MiB

ISOLATION: Final = ("files", "network", "processes")
"""What needs the kernel's namespaces: an own file system, no network, and that no process outlives the run."""

BOX: Final = "/box"
"""The folder of a run, the only one that it may write."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one run. `wall_s` begins when the program does; `memory` is of address space in each process, so
    all of them together stay below `memory * processes`; `processes` counts threads too."""

    wall_s: int = 10  # seconds
    cpu_s: int = 10  # seconds, of each process
    memory: int = 1024 * MiB
    processes: int = 16
    file: int = 16 * MiB  # bytes of one file
    folder: int = 64 * MiB  # bytes of all files
    output: int = 256 * KiB  # bytes of stdout and stderr together

    def as_dict(self) -> dict[str, int]:
        return asdict(self)


DEFAULT: Final = Limits()


def plain_name(name: str) -> bool:
    """Whether `name` names a file in a folder and nothing else."""
    return name not in ("", ".", "..") and "/" not in name and "\0" not in name and len(name.encode()) <= 200
