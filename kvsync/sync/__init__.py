"""Whole transfers between this node and a peer: what may move, what must, and moving it.

Knows the store and one peer's client. Which models there are is not its business: it compares the
fingerprints it is given.
"""

from kvsync.sync.pull import pull
from kvsync.sync.push import push
from kvsync.sync.report import PullReport, PushReport, Verdict

__all__ = ["PullReport", "PushReport", "Verdict", "pull", "push"]
