"""The providers of one pull, each in a task of its own: describe, then serve, until there is nothing left to serve.

    task per provider   hello ─► describe ─► wait for the plan ─► have ─► streams ─► have again, while it grows …
    the pull itself             └─ first description ─► draft ─► plan ─┘           └─ complete, or nobody left

What goes wrong with one provider ends its task and is its reason; the others go on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kvsync.errors import NotFoundError, StoreError, UnavailableError
from kvsync.keys import Peer
from kvsync.peer.bulk_client import BulkConnection
from kvsync.sync.description import Describing, Description
from kvsync.sync.plan import Plan
from kvsync.sync.share import Share
from kvsync.sync.streams import Stream
from kvsync.sync.transfer import Contact, Transfer
from kvsync_protocol.errors import CodedError
from kvsync_protocol.have import Have
from kvsync_protocol.manifest import Manifest

LOOK_S: Final = 0.25
"""How often it is asked whether anybody left has what is missing."""
HAVE_S: Final = 0.2
HAVE_FACTOR: Final = 20
"""A provider that is still getting is asked again after so long, and so many times as long as its answer took."""

MakeStream = Callable[[Contact, Share, BulkConnection], Stream]


class Sources:
    """Async context manager around all of a pull. `stream` makes what moves chunks."""

    def __init__(self, transfer: Transfer, describing: Describing, stream: MakeStream) -> None:
        self._transfer = transfer
        self._describing = describing
        self._stream = stream
        self._planned: asyncio.Future[tuple[Manifest, Plan]] = asyncio.get_running_loop().create_future()
        self._reasons: dict[Peer, CodedError] = {}
        self._fatal: StoreError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Sources:
        self._tasks = {asyncio.create_task(self._provide(peer)) for peer in self._transfer.peers}
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def description(self) -> Description:
        """The first good one. Raises why nobody has one."""
        found = self._describing.found
        waiting: set[asyncio.Future[Any]] = set(self._tasks)
        while not found.done() and waiting:
            done, _ = await asyncio.wait({found, *waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
            _raise_bugs(done - {found})
        return await found

    async def move(self, manifest: Manifest, plan: Plan) -> None:
        """Let everybody serve until the plan is complete, and end all contacts. Raises why it cannot be."""
        self._planned.set_result((manifest, plan))
        waiting, last, since = set(self._tasks), -1, time.monotonic()
        while not plan.complete:
            if not waiting:
                raise self._failure()
            done, waiting = await asyncio.wait(waiting, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            _raise_bugs(done)
            if self._fatal is not None:
                raise self._fatal
            with plan.changed:
                moved, stuck = plan.bytes_wire, not plan.complete and not plan.under_way
                stuck = stuck and not any(share.can_help() for share in plan.live)
                growing = len(plan.live) < len(waiting) or any(share.is_partial for share in plan.live)
            if moved != last or not stuck:
                last, since = moved, time.monotonic()
            elif not growing or time.monotonic() - since > self._transfer.settings.stall_timeout_s:
                raise self._failure(len(plan.waiting))
        await self._stop()  # also those who were slower

    async def _provide(self, peer: Peer) -> None:
        try:
            async with self._transfer.contact(peer) as contact:
                await self._describe(contact)
                have = await self._first_have(contact)
                manifest, plan = await asyncio.shield(self._planned)
                share = plan.join(peer.name, peer.key.raw)
                if not contact.client.is_far:  # a long line is filled by many streams at once
                    share.leading = manifest.layout.first_block_leaves
                try:
                    share.learn(have)
                    await self._serve(contact, manifest, share)
                except CodedError as error:
                    share.end(error)
                    raise
        except CodedError as error:
            self._note(peer, error)
            self._describing.leave(peer)

    async def _describe(self, contact: Contact) -> None:
        """Until there is a description, which another may have to give."""
        await contact.client.hello()
        try:
            await self._describing.ask(contact)
        except NotFoundError as error:
            if len(self._transfer.peers) == 1:
                raise
            self._note(contact.peer, error)
            self._describing.leave(contact.peer)
            await asyncio.shield(self._describing.found)
            self._reasons.pop(contact.peer, None)

    async def _first_have(self, contact: Contact) -> Have:
        """What the provider has, once it has anything: it may begin to get it itself."""
        if contact.have is not None:
            return contact.have
        manifest = self._describing.found.result().manifest
        while True:
            try:
                return await contact.client.have(manifest)
            except NotFoundError as error:
                if len(self._transfer.peers) == 1:
                    raise
                self._note(contact.peer, error)
            await asyncio.sleep(HAVE_S)

    async def _serve(self, contact: Contact, manifest: Manifest, share: Share) -> None:
        """Until the plan is complete. Raises why this provider's part is over before."""
        self._reasons.pop(contact.peer, None)
        moving = asyncio.create_task(self._move(contact, share))
        pause = HAVE_S
        try:
            while not moving.done():
                await asyncio.wait({moving}, timeout=pause if share.is_partial else None)
                if not moving.done():
                    began = time.monotonic()
                    share.learn(await contact.client.have(manifest))
                    longest = self._transfer.settings.stall_timeout_s / 4  # later would look as if it did not grow
                    pause = min(max(HAVE_S, HAVE_FACTOR * (time.monotonic() - began)), longest)
            await moving
        finally:
            moving.cancel()
            await asyncio.gather(moving, return_exceptions=True)

    async def _move(self, contact: Contact, share: Share) -> None:
        try:
            await contact.move(share, lambda connection: self._stream(contact, share, connection))
        except StoreError as error:
            self._fatal = error  # this host's disk, nobody else's
            raise

    def _note(self, peer: Peer, error: CodedError) -> None:
        """Keep a provider's reason. When everybody has one, there will be no description."""
        self._reasons[peer] = error
        found = self._describing.found
        if len(self._reasons) == len(self._transfer.peers) and not found.done():
            found.set_exception(self._failure())

    def _failure(self, lacking: int = 0) -> CodedError:
        """Why nobody is left, by name. Reasons of one code keep it."""
        if lacking:
            lacks = NotFoundError("peer.chunk_gone", f"{lacking} chunks are not to be had there")
            for peer in self._transfer.peers:
                self._reasons.setdefault(peer, lacks)
        found = list(self._reasons.values())
        if len(self._transfer.peers) == 1:
            return found[0]
        said = "; ".join(f"{peer.name}: {error.message} ({error.code})" for peer, error in self._reasons.items())
        message = f"nobody is left to get it from: {said}"
        providers = {peer.name: error.code for peer, error in self._reasons.items()}
        if len({error.code for error in found}) == 1:
            return type(found[0])(found[0].code, message, hint=found[0].hint, providers=providers)
        return UnavailableError("pull.no_provider", message, hint="what was verified is kept", providers=providers)


def _raise_bugs(done: Iterable[asyncio.Future[Any]]) -> None:
    """What no provider is to blame for ends the pull as it is."""
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
