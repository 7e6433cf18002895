"""Programs that nobody trusts, run with limits on everything they could use up, reach or leave behind."""

from kvsync.library.sandbox.limits import ISOLATION, Limits
from kvsync.library.sandbox.program import Ended, run_program

__all__ = ["ISOLATION", "Ended", "Limits", "run_program"]
