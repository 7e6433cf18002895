"""A node of the demo: a home of its own and a daemon process, as a user would make them."""

from __future__ import annotations

from pathlib import Path

from kvsync.config import Settings
from kvsync.daemon.client import DaemonClient
from kvsync.daemon.lifecycle import start, stop
from kvsync.evidence.node import Node


class DemoNode(Node):
    """Created empty; `start` runs a real daemon on a free loopback port."""

    def __init__(self, name: str, root: Path, settings: Settings) -> None:
        super().__init__(name, root, settings)
        self.client = DaemonClient(self.home)

    def start(self) -> None:
        """Raises UnavailableError when the daemon does not come up."""
        start(self.home)
        self.address = str(self.client.status()["address"])

    def stop(self) -> None:
        stop(self.home)
