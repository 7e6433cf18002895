"""The `kvsync` command: asks the other parts and shows what they answer. Only here are texts printed and
exit statuses chosen. Heavy modules are imported inside the commands that need them, so that `--help` and
a mistyped word cost nothing.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status (docs/reference.md, Exit statuses)."""
    from kvsync.cli._app import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path that is not Unicode must not turn a result into a crash.
            stream.reconfigure(errors="backslashreplace")
    try:
        with _orderly_end():
            return run(sys.argv[1:] if arguments is None else list(arguments))
    except BrokenPipeError:
        # The reader has gone (`kvsync ls | head`). Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


@contextmanager
def _orderly_end() -> Iterator[None]:
    """SIGTERM ends a command as an interrupt does: what it started is stopped, what it holds is released."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
