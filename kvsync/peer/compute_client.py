"""The asking side of computations: what a peer offers to compute with, and how far it is (COMPUTE.md)."""

from __future__ import annotations

from kvsync.peer.client import PeerClient
from kvsync_protocol.computation import (
    CANCEL,
    COMPUTATION,
    COMPUTATIONS,
    MODELS,
    ComputeRequest,
    ComputeState,
    Models,
)
from kvsync_protocol.limits import MAX_JSON_BYTES

_JSON = {"Content-Type": "application/json"}


class ComputeClient(PeerClient):
    """Async context manager; `hello` comes first. Raises what PeerClient does, and PolicyError `peer.role`."""

    async def models(self) -> Models:
        return Models.parse(await self._get(MODELS, MAX_JSON_BYTES))

    async def compute(self, request: ComputeRequest) -> ComputeState:
        """Ask, or find what was asked before under this id.

        Raises:
            NotFoundError: `compute.unknown_model`; PolicyError: `compute.too_long`, `compute.too_many`.
        """
        return ComputeState.parse(await self._send("POST", COMPUTATIONS, request.encode(), _JSON))

    async def computation(self, name: str) -> ComputeState:
        """Raises NotFoundError `compute.unknown_id`."""
        return ComputeState.parse(await self._get(COMPUTATION.format(computation=name), MAX_JSON_BYTES))

    async def cancel(self, name: str) -> ComputeState:
        """Raises NotFoundError `compute.unknown_id`."""
        return ComputeState.parse(await self._send("POST", CANCEL.format(computation=name), b"", _JSON))
