"""A process that is killed at the n-th system call of a kind, by strace, from its start or from when it is attached.

SIGKILL comes as the call is entered, so it is not carried out. strace counts each call by thread and name.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "write": ("write", "pwrite64"),
    "fsync": ("fsync", "fdatasync"),
    "rename": ("rename", "renameat", "renameat2"),
    "unlink": ("unlink", "unlinkat"),
}
ATTACH_S: Final = 30.0
_STRACE: Final = ("strace", "-f", "-qq")


@dataclass(frozen=True, slots=True)
class Trap:
    """`number` is of the call in the thread that makes it, from 1."""

    kind: str
    number: int

    def options(self) -> list[str]:
        """strace's."""
        calls = ",".join(KINDS[self.kind])
        inject = f"inject={calls}:signal=KILL:when={self.number}"
        return ["-o", os.devnull, "-e", f"trace={calls}", "-e", inject]


def start(words: Sequence[str], errors: Path, trap: Trap | None = None) -> subprocess.Popen[str]:
    """Start `python -m words`, its standard error appended to a file."""
    # -D: the traced process is the one that was started, so that its pid and exit status are had directly.
    prefix = () if trap is None else (*_STRACE, "-D", *trap.options())
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    with errors.open("a") as file:
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", *words], stdout=subprocess.PIPE, stderr=file, text=True, env=environment
        )


@contextmanager
def attached(process: subprocess.Popen[str], trap: Trap) -> Iterator[None]:
    """A process that runs already is in the trap from now on; strace ends with it, or here."""
    tracer = subprocess.Popen([*_STRACE, "-p", str(process.pid), *trap.options()])
    try:
        give_up = time.monotonic() + ATTACH_S
        while process.poll() is None and not _is_traced(process.pid):
            if tracer.poll() is not None or time.monotonic() > give_up:
                raise RuntimeError("strace does not attach")
            time.sleep(0.01)
        yield
    finally:
        tracer.terminate()
        tracer.wait()


def _is_traced(pid: int) -> bool:
    try:
        tasks = [(task / "status").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:  # one of them has just ended
        return False
    return all("TracerPid:\t0\n" not in task for task in tasks)
