"""What pull and push share: one deadline, a contact with every peer, and the numbers at the end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

from kvsync.config import Settings
from kvsync.keys import KeySpread, NodeKeys, Peer, TrustList
from kvsync.peer.bulk_client import BulkConnection
from kvsync.peer.client import PeerClient
from kvsync.peer.deadline import Deadline
from kvsync.peer.identity import NodeIdentity
from kvsync.peer.rates import Rates
from kvsync.peer.watch import while_trusted
from kvsync.progress import Progress
from kvsync.sync.choice import EncodingChoice
from kvsync.sync.plan import Plan
from kvsync.sync.policy import Policies
from kvsync.sync.report import Report, Source
from kvsync.sync.share import Share
from kvsync.sync.streams import Stream, run_streams
from kvsync_protocol.errors import CodedError
from kvsync_protocol.have import Have
from kvsync_protocol.manifest import Manifest

R = TypeVar("R", bound=Report)

PAUSE_LOOK_S: Final = 0.25
FAR_STREAMS: Final = 2
"""Streams for each one of the settings on a far line, which is idle between an answer and the next request."""


class Transfer:
    """One transfer under way, from its first request to its report. `stage` names it in progress reports."""

    def __init__(
        self,
        stage: str,
        peers: Sequence[Peer],
        keys: NodeKeys,
        settings: Settings,
        progress: Progress,
        *,
        dry_run: bool,
    ) -> None:
        self.stage = stage
        self.peers = tuple(peers)
        self.settings = settings
        self.dry_run = dry_run
        self.deadline = Deadline.after(settings.transfer_deadline_s)
        self.policies = Policies(dry_run=dry_run)
        self.keys = keys.current()
        self.progress = progress
        self._contacts: list[Contact] = []
        self._identity = NodeIdentity(self.keys.peer)
        self._spread = KeySpread(keys.home, TrustList(keys.home, self.keys.signer.public))
        self._rates = Rates.of(self.keys.home)
        self._extended_at = self._began = time.monotonic()
        self._moving_s = 0.0

    @asynccontextmanager
    async def contact(self, peer: Peer) -> AsyncIterator[Contact]:
        """A contact with one of the peers; everything inside ends at the deadline.

        Raises:
            UnavailableError: `peer.deadline`; TrustError: `peer.revoked`, also in the middle.
        """
        contact = None
        throttle = self._rates.throttle(peer.key)
        try:
            async with (
                asyncio.timeout_at(self.deadline.at) as limit,
                self._extended(limit),
                while_trusted(peer, self._spread),
                PeerClient(peer, self._identity, self.settings, self.deadline, self._spread, throttle) as client,
            ):
                contact = Contact(self, peer, client)
                self._contacts.append(contact)
                yield contact
        except TimeoutError:
            self.deadline.remaining()
            raise
        finally:
            if contact is not None:
                await asyncio.shield(contact.close_unused())

    @asynccontextmanager
    async def _extended(self, limit: asyncio.Timeout) -> AsyncIterator[None]:
        """The time in which every peer is paused does not count."""

        async def look() -> None:
            while True:
                before = time.monotonic()
                await asyncio.sleep(PAUSE_LOOK_S)
                now = time.monotonic()
                if all(self._rates.paused(peer.key) for peer in self.peers):
                    self.deadline.extend(now - max(before, self._extended_at))
                self._extended_at = now
                limit.reschedule(self.deadline.at)

        looking = asyncio.create_task(look(), name="kvsync-pauses")
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    @contextlib.contextmanager
    def moving(self, plan: Plan) -> Iterator[None]:
        """Counts the time inside as that in which chunks move."""
        began = time.monotonic()
        self.progress(self.stage, plan.bytes_here, plan.bytes_total, "bytes")
        yield
        self._moving_s += time.monotonic() - began

    def report(self, kind: type[R], manifest: Manifest, plan: Plan, name: str | None) -> R:
        """The numbers; in a dry run those of the transfer that would be."""
        return kind(
            peer=", ".join(peer.name for peer in self.peers),
            artifact=manifest.artifact,
            name=name,
            dry_run=self.dry_run,
            chunks=plan.chunks_total,
            chunks_moved=plan.chunks_planned if self.dry_run else plan.chunks_moved,
            bytes_total=plan.bytes_total,
            bytes_moved=plan.bytes_planned if self.dry_run else plan.bytes_moved,
            bytes_wire=plan.bytes_wire,
            bytes_unencrypted=plan.bytes_unencrypted,
            bytes_here=plan.bytes_here,
            resent=plan.resent,
            streams=max((contact.streams(plan.chunks_planned) for contact in self._contacts), default=0),
            seconds=time.monotonic() - self._began,
            moving_seconds=self._moving_s,
            verdicts=self.policies.verdicts,
            sources=tuple(Source.of(share) for share in plan.shares),
        )


class Contact:
    """One peer during one transfer."""

    def __init__(self, transfer: Transfer, peer: Peer, client: PeerClient) -> None:
        self.transfer = transfer
        self.peer = peer
        self.client = client
        self.policies = Policies(dry_run=transfer.dry_run)
        self.choice = EncodingChoice(transfer.settings.encoding)
        self.have: Have | None = None
        """What the peer has of the artifact, where it said so with the description."""
        self._ahead: list[tuple[BulkConnection, asyncio.Future[None]]] = []

    def open_ahead(self, chunks: int) -> None:
        """Begin to open the bulk connections that so many chunks need, while tables are under way."""
        for _ in range(self.streams(chunks) - len(self._ahead)):
            connection = self.client.bulk()
            self._ahead.append((connection, asyncio.ensure_future(asyncio.to_thread(_open, connection))))

    def streams(self, chunks: int) -> int:
        """To this peer, for so many chunks; more where the line would be idle while each of them waits."""
        settings = self.transfer.settings
        wanted = -(-settings.streams // len(self.transfer.peers))
        return min(wanted * FAR_STREAMS if self.client.is_far else wanted, chunks)

    @property
    def begins_ahead(self) -> bool:
        """Whether a stream begins its next chunk before the one under way is done.

        While a chunk is encoded or decoded the line is idle; on a far one other streams fill it.
        """
        return self.transfer.settings.encoding != "identity" and not self.client.is_far

    async def close_unused(self) -> None:
        """Those that no stream took."""
        for connection, opening in self._ahead:
            connection.abort()
            await opening
            connection.close()
        self._ahead.clear()

    async def move(self, share: Share, stream: Callable[[BulkConnection], Stream]) -> None:
        """Move chunks of the share until none is left, each stream from when its own connection is open."""
        count = self.streams(share.plan.chunks_planned)
        if count:
            if self._ahead:  # so far for the first block only
                self.open_ahead(count)
            await run_streams([partial(self._start, stream)] * count)

    async def _start(self, stream: Callable[[BulkConnection], Stream]) -> Stream:
        if not self._ahead:
            return stream(self.client.bulk())
        place = self._ahead.pop()
        try:
            await asyncio.shield(place[1])
        except asyncio.CancelledError:
            self._ahead.append(place)
            raise
        return stream(place[0])


def _open(connection: BulkConnection) -> None:
    """Open if possible; the stream that gets the connection tries again, and says what is wrong."""
    with contextlib.suppress(CodedError):
        connection.open()
