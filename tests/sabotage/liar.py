"""A peer that says whatever its story says, over the real TLS listener and the real protocol classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from kvsync.peer.bulk_server import BulkLane, BulkSession
from kvsync.peer.control import ControlLane
from kvsync.peer.server import PeerServer
from kvsync.peer.stream import Stream
from kvsync_protocol import parts
from kvsync_protocol.bulk import BulkReply, BulkRequest, Encoding, Status
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.have import Have
from kvsync_protocol.messages import Attestations, RefList, Related
from kvsync_protocol.signing import PublicKey
from tests.conftest import Artifact

Make = Callable[..., PeerServer]


@dataclass(frozen=True)
class Story:
    """What the peer answers, whatever it is asked."""

    artifact: Artifact
    refs: tuple[Envelope, ...] = ()
    attestations: tuple[Envelope, ...] = ()


class LyingControl(ControlLane):
    story: Story

    def envelope(self, *_: Any) -> bytes:
        return self.story.artifact.envelope.encode()

    def leaves(self, *_: Any) -> bytes:
        return self.story.artifact.leaves

    def tokens(self, *_: Any) -> bytes:
        return self.story.artifact.tokens

    def have(self, *_: Any) -> bytes:
        return Have(len(self.story.artifact.chunks)).encode()

    def refs(self, *_: Any) -> bytes:
        return RefList(self.story.refs).encode()

    def attestations(self, *_: Any) -> bytes:
        return Attestations(self.story.attestations).encode()

    def description(self, *_: Any) -> bytes:
        told = self.envelope(), self.attestations(), self.leaves(), self.tokens(), self.have()
        return parts.join(told)

    async def _part(self, request: web.Request, part: Callable[..., bytes]) -> bytes:
        return part()

    async def _related(self, request: web.Request) -> web.StreamResponse:
        return await self._send(request, Related(()).encode(), "application/json")


class LyingLane(BulkLane):
    story: Story

    def session(self, key: PublicKey, stream: Stream) -> BulkSession:
        """The real session, whose every answer is the story's chunk."""

        def lie(request: BulkRequest) -> None:
            chunk = self.story.artifact.chunks[request.index]
            session.stream.write(BulkReply(Status.OK, Encoding.IDENTITY, len(chunk)).encode(), chunk)

        session = super().session(key, stream)
        session._answer = lie  # type: ignore[method-assign]
        return session


class Liar(PeerServer):
    control_type = LyingControl
    bulk_type = LyingLane

    def __init__(self, *node: Any, story: Story) -> None:
        super().__init__(*node)
        for lane in (self.control, self.bulk):
            lane.story = story  # type: ignore[union-attr]
