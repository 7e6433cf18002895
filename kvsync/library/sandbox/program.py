"""Run one program in a jail, read what it says up to a cap, and say how it ended.

Knows no verifier. What the program does is never an error; what this host cannot give it is.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import BinaryIO

from kvsync.errors import PolicyError, UnavailableError, UsageError
from kvsync.library.sandbox.limits import DEFAULT, ISOLATION, Limits, plain_name

START_S = 60  # seconds a jail may take to be built, on a busy host
_READ = 64 * 1024


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended. `broke` names the limit that ended it: `wall_s`, `cpu_s`, `output`, or nothing.

    `status` is its exit status, or minus the signal; None when it was ended from here.
    """

    status: int | None
    broke: str
    stdout: bytes
    stderr: bytes
    wall_s: float
    cpu_s: float

    @property
    def well(self) -> bool:
        return self.status == 0 and not self.broke


def run_program(
    argv: Sequence[str],
    *,
    files: Mapping[str, str] | None = None,
    stdin: str = "",
    limits: Limits = DEFAULT,
    without: Iterable[str] = (),
) -> Ended:
    """Run `argv` with `files` (plain names) in its folder. `without` lists isolations that may be missing.

    Raises:
        PolicyError: `sandbox.isolation` when this host does not give one that is not in `without`.
        UsageError: `sandbox.program` when it cannot be started, `sandbox.without`, `sandbox.file`.
        UnavailableError: `sandbox.start` when the jail itself fails.
    """
    without = tuple(without)
    if set(without) - set(ISOLATION):
        raise UsageError("sandbox.without", f"there is no isolation {min(set(without) - set(ISOLATION))!r}")
    files = dict(files or {})
    for name in files:
        if not plain_name(name):
            raise UsageError("sandbox.file", f"not a plain file name: {name[:40]!r}")
    request = {
        "argv": list(argv),
        "files": files,
        "stdin": stdin,
        "limits": limits.as_dict(),
        "without": without,
    }
    with tempfile.TemporaryDirectory(prefix="kvsync-box-", ignore_cleanup_errors=True) as folder:
        return _Run(json.dumps(request).encode(), limits, folder).result()


class _Run:
    """The jail's process and its three streams."""

    def __init__(self, request: bytes, limits: Limits, folder: str) -> None:
        self.limits = limits
        self.told: dict[str, object] = {}
        self.texts = {"stdout": bytearray(), "stderr": bytearray(), "status": bytearray()}
        self.broke = ""
        self.began = self.seen = time.monotonic()
        read, write = os.pipe()
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-E", "-P", "-B", "-m", "kvsync.library.sandbox.jail", str(write), folder],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[write],
                env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            os.close(read)
            raise UnavailableError("sandbox.start", f"no process can be started: {error.strerror}") from error
        finally:
            os.close(write)
        self.status = os.fdopen(read, "rb", buffering=0)
        self.request = request

    def result(self) -> Ended:
        try:
            self._feed()
            self._watch()
        finally:
            self._end()
        return self._judge()

    def _feed(self) -> None:
        stdin = self.process.stdin
        if stdin is not None:
            with suppress(BrokenPipeError), stdin:
                stdin.write(self.request)

    def _streams(self) -> dict[str, BinaryIO]:
        found = {"stdout": self.process.stdout, "stderr": self.process.stderr, "status": self.status}
        return {name: stream for name, stream in found.items() if stream is not None}  # type: ignore[misc]

    def _watch(self) -> None:
        """Read until every stream has ended or a limit is broken."""
        deadline = self.began + START_S
        with selectors.DefaultSelector() as selector:
            for name, stream in self._streams().items():
                selector.register(stream, selectors.EVENT_READ, name)
            while selector.get_map():
                left = deadline - time.monotonic()
                ready = selector.select(left) if left > 0 else []
                if not ready:
                    self.broke = "wall_s" if "ready" in self.told else "start"
                    return
                for key, _ in ready:
                    data = os.read(key.fd, _READ)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif self._take(key.data, data):
                        self.began = time.monotonic()
                        deadline = self.began + self.limits.wall_s
                if len(self.texts["stdout"]) + len(self.texts["stderr"]) > self.limits.output:
                    self.broke = "output"
                    return
                if "done" in self.told:
                    # Processes that outlive the program die with process 1; without namespaces they may not.
                    deadline = min(deadline, time.monotonic() + 1)

    def _take(self, name: str, data: bytes) -> bool:
        """Keep `data`; True when the program has just begun."""
        before = "ready" in self.told
        self.texts[name] += data
        if name == "status":
            *lines, rest = bytes(self.texts[name]).split(b"\n")
            self.texts[name] = bytearray(rest)
            for line in lines:
                self.told.update(json.loads(line))
            if "done" in self.told:
                self.seen = time.monotonic()
        return not before and "ready" in self.told

    def _end(self) -> None:
        """Kill what is left: the group, and with process 1 everything in its namespace."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in self._streams().values():
            stream.close()

    def _judge(self) -> Ended:
        if "missing" in self.told:
            missing = self.told["missing"]
            names = sorted(missing) if isinstance(missing, dict) else []
            raise PolicyError(
                "sandbox.isolation",
                f"this host cannot isolate {', '.join(names)}",
                hint="allow user namespaces, or say which isolation to do without",
                missing=names,
            )
        if "error" in self.told:
            raise UsageError("sandbox.program", f"the program cannot be started: {self.told['error']}")
        if "ready" not in self.told:
            why = bytes(self.texts["stderr"][-300:]).decode(errors="replace").strip() or "it said nothing"
            raise UnavailableError("sandbox.start", f"the jail of a program could not be built: {why}")
        done = self.told.get("done")
        found = done if isinstance(done, dict) else {}
        status, cpu_s = found.get("status"), float(found.get("cpu_s", 0))
        if self.broke == "wall_s" and status is not None:
            self.broke = ""  # the program had ended; only what it left behind had not
        elif status == -signal.SIGXCPU or (status == -signal.SIGKILL and cpu_s >= self.limits.cpu_s):
            self.broke = "cpu_s"
        end = self.seen if found else time.monotonic()
        stdout, stderr = (bytes(self.texts[name][: self.limits.output]) for name in ("stdout", "stderr"))
        return Ended(status, self.broke, stdout, stderr, end - self.began, cpu_s)
