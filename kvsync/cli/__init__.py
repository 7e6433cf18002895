"""The `kvsync` command: asks the other parts and shows what they answer. Only here are texts printed and
exit statuses chosen. Heavy modules are imported inside the commands that need them, so that `--help` and
a mistyped word cost nothing.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status (docs/reference.md, Exit statuses)."""
    from kvsync.cli._app import run

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A path that is not Unicode must not turn a result into a crash.
            stream.reconfigure(errors="backslashreplace")
    try:
        return run(sys.argv[1:] if arguments is None else list(arguments))
    except BrokenPipeError:
        # The reader has gone (`kvsync ls | head`). Python flushes stdout once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
