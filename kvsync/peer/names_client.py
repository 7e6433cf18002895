"""The asking side of names: a peer's signed refs, page by page. Nothing in them is verified here."""

from __future__ import annotations

from urllib.parse import quote

from kvsync.peer.client import PeerClient
from kvsync_protocol import routes
from kvsync_protocol.limits import MAX_JSON_BYTES
from kvsync_protocol.messages import RefList


class NamesClient(PeerClient):
    """Async context manager; `hello` comes first. Raises what PeerClient does, and PolicyError `peer.role`."""

    async def names(self, *, after: str = "") -> RefList:
        """A page of the names after `after`."""
        query = f"?after={quote(after)}" if after else ""
        return RefList.parse(await self._get(routes.REFS + query, MAX_JSON_BYTES))
