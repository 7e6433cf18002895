"""This node's peers as members of a registry that it serves. Knows no rules: `kvsync_registry.service` has them."""

from __future__ import annotations

from kvsync.peer.roster import Roster
from kvsync_protocol.signing import PublicKey
from kvsync_registry.member import Member


class RosterMembers:
    """Whoever may `get` may ask, whoever may `push` may announce.

    A peer named `team/host` here belongs to the tenant `team`: names are this node's own, so no peer chooses it.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster

    def find(self, key: PublicKey) -> Member | None:
        peer = self._roster.find(key)
        if peer is None:
            return None
        tenant, parted, _ = peer.name.partition("/")
        return Member(
            key, tenant if parted else None, "get" in peer.roles, "push" in peer.roles, peer.names or ("*",)
        )
