"""Two Syncthing instances on loopback that know only each other and share one folder.

No discovery, relays, address translation, upgrades or reports, no watching, no rolling hash, no fsync and no lowered
priority. A transfer lasts from the rescan that finds a new file until the receiver says that nothing is missing: the
sender's hashing of the file is in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import rivals

_FOLDER: Final = "f"
_KEY: Final = "benchmark"
_DEADLINE_S: Final = 120
_POLL_S: Final = 0.025
_CONFIG: Final = """
<configuration version="36">
  <folder id="{folder}" path="{path}" type="{kind}" rescanIntervalS="0" fsWatcherEnabled="false">
    <device id="{near}"></device><device id="{far}"></device>
    <minDiskFree unit="">0</minDiskFree><disableFsync>true</disableFsync>
    <weakHashThresholdPct>101</weakHashThresholdPct>
  </folder>
  <device id="{near}" compression="never"><address>tcp://127.0.0.1:{near_port}</address></device>
  <device id="{far}" compression="never"><address>tcp://127.0.0.1:{far_port}</address></device>
  <gui enabled="true" tls="false"><address>127.0.0.1:{gui_port}</address><apikey>{key}</apikey></gui>
  <options>
    <listenAddress>tcp://127.0.0.1:{port}</listenAddress>
    <globalAnnounceEnabled>false</globalAnnounceEnabled><localAnnounceEnabled>false</localAnnounceEnabled>
    <relaysEnabled>false</relaysEnabled><natEnabled>false</natEnabled><stunKeepaliveStartS>0</stunKeepaliveStartS>
    <autoUpgradeIntervalH>0</autoUpgradeIntervalH><urAccepted>-1</urAccepted><urSeen>9999</urSeen>
    <crashReportingEnabled>false</crashReportingEnabled><startBrowser>false</startBrowser>
    <reconnectionIntervalS>1</reconnectionIntervalS><setLowPriority>false</setLowPriority>
    <minHomeDiskFree unit="">0</minHomeDiskFree>
  </options>
</configuration>
"""


class Instance:
    """One side; its home holds the folder, too."""

    def __init__(self, home: Path) -> None:
        self.home, self.folder = home, home / "folder"
        self.port, self.gui_port = rivals.free_port(), rivals.free_port()
        command = ["syncthing", "generate", f"--home={home}", "--no-default-folder", "--skip-port-probing"]
        subprocess.run(command, check=True, capture_output=True)
        self.folder.mkdir()
        found = re.search(r'<device id="([A-Z0-9-]+)"', (home / "config.xml").read_text())
        if found is None:
            raise RuntimeError("syncthing gave itself no device ID")
        self.device = found[1]

    def call(self, path: str, *, method: str = "GET") -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.gui_port}/rest/{path}"
        request = urllib.request.Request(url, method=method, headers={"X-API-Key": _KEY})
        with urllib.request.urlopen(request, timeout=_DEADLINE_S) as reply:  # noqa: S310  fixed above
            return dict(json.loads(reply.read() or "{}"))

    def scan(self) -> None:
        self.call(f"db/scan?folder={_FOLDER}", method="POST")

    def wait(self, size: int) -> None:
        """Until the whole folder is known to have `size` bytes, and all are here."""
        until = time.monotonic() + _DEADLINE_S
        while time.monotonic() < until:
            at = self.call(f"db/completion?folder={_FOLDER}")
            if at["globalBytes"] == size and at["completion"] == 100 and not at["needItems"] + at["needDeletes"]:
                return
            time.sleep(_POLL_S)
        raise RuntimeError(f"syncthing does not finish: {at}")


@contextlib.contextmanager
def syncthing(
    root: Path, source: Path, url: str, nginx: int
) -> Iterator[tuple[tuple[int, ...], Callable[[Path], Callable[[], None]]]]:
    near, far = Instance(root / "syncthing-near"), Instance(root / "syncthing-far")
    sides = {"near": near.device, "far": far.device, "near_port": near.port, "far_port": far.port}
    with contextlib.ExitStack() as stack:
        pids = []
        for side, kind in ((near, "sendonly"), (far, "receiveonly")):
            own = {"path": side.folder, "kind": kind, "port": side.port, "gui_port": side.gui_port}
            (side.home / "config.xml").write_text(_CONFIG.format(folder=_FOLDER, key=_KEY, **sides, **own))
            (side.folder / ".stfolder").mkdir()
            command = ("syncthing", "serve", f"--home={side.home}", "--no-browser", "--no-restart", "--no-upgrade")
            process = stack.enter_context(rivals.running(*command))
            rivals.wait_for(side.gui_port, process)
            pids.append(process.pid)
        size = source.stat().st_size

        def get(out: Path) -> Callable[[], None]:
            """Into the receiver's folder instead of `out`."""
            os.link(source, near.folder / source.name)
            near.scan()
            far.wait(size)
            return forget

        def forget() -> None:
            """Away on both sides: a receiver that still had the blocks would copy them."""
            if (far.folder / source.name).stat().st_size != size:
                raise RuntimeError("syncthing did not bring the file")
            (near.folder / source.name).unlink()
            near.scan()
            far.wait(0)
            if (far.folder / source.name).exists():
                raise RuntimeError("syncthing did not remove the file")

        yield tuple(pids), get
