"""The asking side of a registry: one server, whether a daemon's control lane or a registry of its own.

Everything it answers is a hint. `RegistryLink` is what a host uses that goes on when the registry does not answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from kvsync.peer.client import PeerClient
from kvsync_protocol import registry_routes as routes
from kvsync_protocol.digest import ArtifactId, PrefixKey
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.limits import MAX_JSON_BYTES
from kvsync_protocol.messages import RefList
from kvsync_protocol.ref import check_name
from kvsync_protocol.registry_messages import (
    MAX_QUERY_KEYS,
    Addresses,
    Envelopes,
    Matches,
    Outcomes,
    PrefixQuery,
    Vouched,
)
from kvsync_protocol.signing import PublicKey

_JSON = {"Content-Type": "application/json"}


class RegistryClient(PeerClient):
    """Async context manager; `hello` comes first, as with any peer. Raises what PeerClient does and `registry.*`."""

    async def declare(self, statements: Sequence[Envelope]) -> Outcomes:
        body = Envelopes(tuple(statements)).encode()
        return Outcomes.parse(await self._send("POST", routes.STATEMENTS, body, _JSON))

    async def lookup(self, keys: Sequence[PrefixKey]) -> Matches:
        """Of a longer prompt the first 4,096 blocks are asked for."""
        body = PrefixQuery(tuple(keys[:MAX_QUERY_KEYS])).encode()
        return Matches.parse(await self._send("POST", routes.LOOKUP, body, _JSON))

    async def providers(self, artifact: ArtifactId) -> Matches:
        return Matches.parse(await self._get(routes.PROVIDERS.format(artifact=artifact.hex), MAX_JSON_BYTES))

    async def names(self, *, name: str = "", after: str = "") -> RefList:
        """Refs of `name`, or a page of those after `after`; nothing in them is verified."""
        query = f"name={check_name(name)}" if name else f"after={quote(after)}"
        return RefList.parse(await self._get(f"{routes.NAMES}?{query}", MAX_JSON_BYTES))

    async def set_name(self, vouched: Vouched) -> None:
        await self._send("POST", routes.NAMES, vouched.encode(), _JSON)

    async def attested(self, artifact: ArtifactId) -> Envelopes:
        path = routes.ATTESTATIONS.format(artifact=artifact.hex)
        return Envelopes.parse(await self._get(path, MAX_JSON_BYTES))

    async def vouch(self, artifact: ArtifactId, vouched: Vouched) -> None:
        await self._send("POST", routes.ATTESTATIONS.format(artifact=artifact.hex), vouched.encode(), _JSON)

    async def contact(self, key: PublicKey) -> Addresses:
        return Addresses.parse(await self._get(routes.CONTACT.format(key=key), MAX_JSON_BYTES))
