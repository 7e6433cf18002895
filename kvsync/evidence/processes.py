"""Steps of a run in processes of their own: one JSON object goes in, JSON lines come out until the last.

A line is `{"found": …}` for a result, `{"progress": […]}`, or `{"error": …}`. Parent and child are the same
release, so the lines need no version.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable
from typing import Any

from kvsync.errors import KvsyncError
from kvsync.failure import Failure
from kvsync.progress import Progress
from kvsync_protocol.errors import CodedError

Step = Callable[[dict[str, Any], Progress], Iterable[dict[str, Any]]]


def run_step(
    module: str, step: str, params: dict[str, Any], progress: Progress
) -> Generator[dict[str, Any], None, None]:
    """Results of `python -m module step`, as they come. Closing it ends the process.

    Raises:
        CodedError: the child's own error.
        KvsyncError: `prove.child` when it ended without one.
    """
    # Threads that wait by spinning take the cores from each other on a busy machine; results do not depend on it.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
    command = [sys.executable, "-m", module, step]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        try:
            if process.stdin is None or process.stdout is None:
                raise KvsyncError("prove.child", "the process has no pipes")
            process.stdin.write(json.dumps(params).encode())
            process.stdin.close()
            done = False
            for line in process.stdout:
                message = json.loads(line)
                if "error" in message:
                    raise Failure.parse(message["error"]).error()
                if "progress" in message:
                    progress(*message["progress"])
                elif "found" in message:
                    yield message["found"]
                else:
                    done = True
            if not done:
                raise KvsyncError("prove.child", f"step {step} ended with status {process.wait()}")
        finally:
            process.kill()


def serve_step(steps: dict[str, Step]) -> int:
    """The child's side: run the step that the command line names; its exit status."""
    params = json.load(sys.stdin)

    def tell(**message: object) -> None:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()

    def progress(stage: str, done: int, total: int, unit: str) -> None:
        tell(progress=[stage, done, total, unit])

    try:
        for found in steps[sys.argv[1]](params, progress):
            tell(found=found)
    except CodedError as error:
        tell(error=Failure.of(error).as_json())
        return 1
    tell(done=True)
    return 0
