"""`ComputeDesk`: takes computations that peers ask for, and tells them how far they are (COMPUTE.md).

A peer is known by the key it is listed under. Its role is looked at before anything else. What it asks for becomes a
job of this daemon's own queue, under an id that is made of both its key and its id: nobody else's is ever found.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web

from kvsync.config import Home, Settings
from kvsync.daemon.asked import Asked, too_long
from kvsync.daemon.board import JobBoard
from kvsync.daemon.messages import Job, JobId, JobKind, JobState, Submission
from kvsync.daemon.offered import OfferedModels
from kvsync.daemon.params import ComputeParams
from kvsync.errors import NotFoundError, PolicyError
from kvsync.keys import Peer, PeerBook
from kvsync.peer.access import Access
from kvsync.peer.lane import Lane
from kvsync_protocol import computation
from kvsync_protocol.computation import ComputeRequest, ComputeState, Models, check_computation_id
from kvsync_protocol.digest import ArtifactId, Digest, hash_record
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import KiB

ROLE: Final = "compute"
LOOK_S: Final = 1.0
"""How often it is seen whether those who wait may still ask; while nobody does, nothing is read for it."""
_TOLD: Final = ("compute.", "deposit.", "engine.")
"""Families of errors whose text says nothing of this host."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ComputeDesk:
    """For one event loop, the board's own. `access` learns who may fetch which result."""

    board: JobBoard
    home: Home
    settings: Settings
    access: Access | None = None
    _awaited: bool = field(default=True, init=False)  # whether there may be unfinished computations of peers

    def mount(self, app: web.Application, lane: Lane) -> None:
        async def models(request: web.Request) -> web.StreamResponse:
            lane.require(request, ROLE)
            found = await lane.in_thread(OfferedModels(self.home).models)
            return await lane.answer(request, Models(tuple(model.fingerprints for model in found)).encode())

        async def ask(request: web.Request) -> web.StreamResponse:
            peer = lane.peer(request, ROLE)
            body = await lane.body(request, computation.MAX_REQUEST_BYTES)
            wanted = await lane.in_thread(ComputeRequest.parse, body)
            return await lane.answer(request, (await self._ask(lane, peer, wanted)).encode())

        async def state(request: web.Request) -> web.StreamResponse:
            peer, name = lane.peer(request, ROLE), _name(request)
            return await lane.answer(request, self._state(peer, name, self._find(peer, name)).encode())

        async def cancel(request: web.Request) -> web.StreamResponse:
            peer, name = lane.peer(request, ROLE), _name(request)
            await lane.body(request, 4 * KiB)
            job = self.board.cancel(self._find(peer, name).id)
            return await lane.answer(request, self._state(peer, name, job).encode())

        app.router.add_get(computation.MODELS, models, allow_head=False)
        app.router.add_post(computation.COMPUTATIONS, ask)
        app.router.add_get(computation.COMPUTATION, state, allow_head=False)
        app.router.add_post(computation.CANCEL, cancel)

    async def run(self) -> None:
        """End what was asked by peers who may no longer ask, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if not self._awaited:
                    continue
                waiting = self._unfinished()
                self._awaited = bool(waiting)
                asking = {str(p.key) for p in PeerBook(self.home).peers() if ROLE in p.roles and p.keys}
                for job in waiting:
                    if _asker(job) not in asking:
                        logger.warning("job %s: the peer that asked for it may no longer", job.id)
                        self.board.cancel(job.id)
            except CodedError as error:
                logger.error("what peers asked for could not be looked at: %s", error)

    async def _ask(self, lane: Lane, peer: Peer, request: ComputeRequest) -> ComputeState:
        try:
            return self._state(peer, request.id, self._find(peer, request.id))
        except NotFoundError:
            pass  # it is new
        model = await lane.in_thread(OfferedModels(self.home).find, request.compatibility, request.numerics)
        most = self.settings.compute_max_tokens
        if len(request.tokens or ()) > most:
            raise too_long(len(request.tokens or ()), most)
        if sum(_asker(job) == str(peer.key) for job in self._unfinished()) >= self.settings.compute_max_jobs:
            raise PolicyError(
                "compute.too_many",
                f"{self.settings.compute_max_jobs} computations of this peer are unfinished",
                hint="wait for one of them, or cancel it",
            )
        params = ComputeParams(
            model.path,
            request.text,
            request.tokens,
            dtype=model.dtype,
            device=model.device,
            asked=Asked(peer.key, request.compatibility, request.numerics, most),
        )
        self._awaited = True
        job = self.board.submit(Submission(_job_id(peer, request.id), JobKind.COMPUTE, params.as_json()))
        logger.info("job %s: asked for by %s", job.id, peer.name)
        return self._state(peer, request.id, job)

    def _find(self, peer: Peer, name: str) -> Job:
        """Raises NotFoundError `compute.unknown_id`, whether it is another's or nobody's."""
        try:
            job = self.board.get(_job_id(peer, name))
        except NotFoundError:
            job = None
        if job is None or _asker(job) != str(peer.key):
            raise NotFoundError("compute.unknown_id", "no such computation", hint="ask again")
        return job

    def _state(self, peer: Peer, name: str, job: Job) -> ComputeState:
        step = job.step
        artifact = None
        if job.state is JobState.DONE and job.result is not None:
            artifact = ArtifactId(Digest.parse(job.result.get("artifact")))
            if self.access is not None:
                self.access.grant(peer.key, artifact)
        code, message = "", ""
        if job.state is JobState.FAILED:
            failure = job.failure
            code = "compute.failed" if failure is None else failure.code
            told = failure is not None and code.startswith(_TOLD)
            message = (
                failure.message if told and failure is not None else "the computation failed; the log there says why"
            )
        return ComputeState(
            name,
            job.state.value,
            self._ahead(job) if job.state is JobState.QUEUED else 0,
            step.stage if step is not None else "",
            step.done if step is not None else 0,
            step.total if step is not None else 0,
            step.unit if step is not None else "",
            artifact,
            code,
            message[:500],
        )

    def _ahead(self, job: Job) -> int:
        waiting = [other.id for other in self.board.queue.unfinished(JobKind.COMPUTE)]
        return waiting.index(job.id) if job.id in waiting else 0

    def _unfinished(self) -> list[Job]:
        return [job for job in self.board.queue.unfinished(JobKind.COMPUTE) if _asker(job) is not None]


def _asker(job: Job) -> str | None:
    """The key of the peer that asked for it, as it is listed; None for this node's own jobs."""
    asked = job.params.get("asked")
    return str(asked.get("key")) if isinstance(asked, dict) else None


def _job_id(peer: Peer, name: str) -> JobId:
    return JobId(hash_record("kvsync/computation/1", [peer.key.raw, name.encode()]).hex[:16])


def _name(request: web.Request) -> str:
    return check_computation_id(request.match_info["computation"])
