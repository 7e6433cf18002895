"""From tokens to a filled inference context: matching, verification, restore; and deposits, their source."""

from kvsync.graft.deposit import deposit
from kvsync.graft.graft import Graft, graft
from kvsync.graft.match import Match
from kvsync.graft.report import GraftReport, Refusal

__all__ = ["Graft", "GraftReport", "Match", "Refusal", "deposit", "graft"]
