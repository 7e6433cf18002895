"""`python -m kvsync.daemon`: the daemon in the background, as `lifecycle.start` starts it.

Forks first, so that its starter has no child to wait for; says through a pipe when it is ready, or why not.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
from pathlib import Path


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="kvsync-daemon")
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--ready-fd", type=int, required=True)
    words = parser.parse_args()
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    os.set_inheritable(words.ready_fd, False)
    return _serve(words.home, words.ready_fd)


def _serve(root: Path, ready_fd: int) -> int:
    from kvsync import log
    from kvsync.config import Home
    from kvsync.daemon import lifecycle
    from kvsync.daemon.messages import Status
    from kvsync.errors import KvsyncError, exit_status
    from kvsync_protocol.errors import CodedError

    log.configure()
    logger = logging.getLogger("kvsync.daemon")
    starter = _Starter(ready_fd)

    def ready(status: Status) -> None:
        if not starter.tell(lifecycle.ready_word(status)):
            logger.warning("the starter has given up: stopping")
            os.kill(os.getpid(), signal.SIGTERM)

    try:
        lifecycle.run(Home(root), ready)
    except CodedError as error:
        logger.error("%s (%s)", error.message, error.code)
        starter.tell(lifecycle.failure_word(error))
        return exit_status(error)
    except Exception as error:
        logger.exception("the daemon ends")
        unexpected = KvsyncError("daemon.unexpected", f"{type(error).__name__}: {error}", hint="see daemon.log")
        starter.tell(lifecycle.failure_word(unexpected))
        return 1
    return 0


class _Starter:
    """Whoever waits at the other end of the pipe for one word."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def tell(self, word: bytes) -> bool:
        """Say it, unless something was said before; False when nobody waits any more."""
        if self._descriptor is None:
            return True  # closed: its number may be anything by now
        descriptor, self._descriptor = self._descriptor, None
        try:
            with os.fdopen(descriptor, "wb") as pipe:
                pipe.write(word)
        except OSError:
            return False
        return True


if __name__ == "__main__":
    raise SystemExit(main())
