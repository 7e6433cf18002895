"""What pull and push share: one peer, one deadline, N streams over one plan, and the numbers at the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from kvsync.config import Settings
from kvsync.keys import KeySpread, NodeKeys, Peer, TrustList
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.watch import while_trusted
from kvsync.progress import Progress
from kvsync.sync.choice import EncodingChoice
from kvsync.sync.plan import Plan
from kvsync.sync.policy import Policies
from kvsync.sync.report import Report
from kvsync.sync.streams import Stream, run_streams
from kvsync_protocol.errors import CodedError
from kvsync_protocol.manifest import Manifest

R = TypeVar("R", bound=Report)


class Transfer:
    """One transfer under way, from its first request to its report. `stage` names it in progress reports."""

    def __init__(
        self, stage: str, peer: Peer, keys: NodeKeys, settings: Settings, progress: Progress, *, dry_run: bool
    ) -> None:
        self.stage = stage
        self.peer = peer
        self.settings = settings
        self.dry_run = dry_run
        self.deadline = Deadline.after(settings.transfer_deadline_s)
        self.policies = Policies(dry_run=dry_run)
        self.choice = EncodingChoice(settings.encoding)
        keys = keys.current()
        self._identity = NodeIdentity(keys.peer)
        self._spread = KeySpread(keys.home, TrustList(keys.home, keys.signer.public))
        self.progress = progress
        self._began = time.monotonic()
        self._moving_s = 0.0
        self._ahead: list[tuple[BulkConnection, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[PeerClient]:
        """A client of the peer; everything inside ends at the deadline.

        Raises:
            UnavailableError: `peer.deadline`; TrustError: `peer.revoked`, also in the middle.
        """
        try:
            async with (
                asyncio.timeout_at(self.deadline.at),
                while_trusted(self.peer, self._spread),
                PeerClient(self.peer, self._identity, self.settings, self.deadline, self._spread) as client,
            ):
                yield client
        except TimeoutError:
            self.deadline.remaining()
            raise
        finally:
            await asyncio.shield(self._close_unused())

    def open_ahead(self, client: PeerClient, chunks: int) -> None:
        """Begin to open the bulk connections for an artifact of so many chunks, while tables are under way."""
        for _ in range(min(self.settings.streams, chunks)):
            connection = client.bulk()
            self._ahead.append((connection, asyncio.ensure_future(asyncio.to_thread(_open, connection))))

    async def _close_unused(self) -> None:
        for connection, opening in self._ahead:
            connection.abort()
            await opening
            connection.close()
        self._ahead.clear()

    async def move(self, client: PeerClient, plan: Plan, stream: Callable[[BulkConnection], Stream]) -> None:
        """Move all of the plan's chunks over as many streams as the settings say."""
        began = time.monotonic()
        self.progress(self.stage, plan.bytes_here, plan.bytes_total, "bytes")
        count = self._streams(plan)
        if count:
            await run_streams([stream(await self._connection(client)) for _ in range(count)])
        self._moving_s += time.monotonic() - began

    async def _connection(self, client: PeerClient) -> BulkConnection:
        if not self._ahead:
            return client.bulk()
        connection, opening = self._ahead[-1]
        await asyncio.shield(opening)
        self._ahead.pop()
        return connection

    def report(self, kind: type[R], manifest: Manifest, plan: Plan, name: str | None) -> R:
        """The numbers; in a dry run those of the transfer that would be."""
        return kind(
            peer=self.peer.name,
            artifact=manifest.artifact,
            name=name,
            dry_run=self.dry_run,
            chunks=manifest.tree.size,
            chunks_moved=plan.chunks_planned if self.dry_run else plan.chunks_moved,
            bytes_total=plan.bytes_total,
            bytes_moved=plan.bytes_planned if self.dry_run else plan.bytes_moved,
            bytes_wire=plan.bytes_wire,
            bytes_here=plan.bytes_here,
            resent=plan.resent,
            streams=self._streams(plan),
            seconds=time.monotonic() - self._began,
            moving_seconds=self._moving_s,
            verdicts=self.policies.verdicts,
        )

    def _streams(self, plan: Plan) -> int:
        return min(self.settings.streams, plan.chunks_planned)


def _open(connection: BulkConnection) -> None:
    """Open if possible; the stream that gets the connection tries again, and says what is wrong."""
    with contextlib.suppress(CodedError):
        connection.open()
