"""Runs pulls, pushes and computations asked of peers as tasks of the daemon's own loop, a few at a time.

Knows jobs and how they end; what a transfer is stands in `kvsync.sync`.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from kvsync.config import Settings
from kvsync.daemon.board import JobBoard
from kvsync.daemon.messages import Job, JobKind, JobState
from kvsync.daemon.params import AskParams, JobParams
from kvsync.daemon.pulling import pull_here
from kvsync.daemon.transfer_params import PullParams, PushParams
from kvsync.errors import KvsyncError
from kvsync.failure import Failure
from kvsync.keys import NodeKeys, PeerBook, TrustList
from kvsync.progress import Progress
from kvsync.store import Store
from kvsync.sync import push
from kvsync.sync.asking import Question, ask, withdraw
from kvsync_protocol.errors import CodedError

MAX_TRANSFERS: Final = 4
MAX_ASKING: Final = 16
"""They take long and cost next to nothing, so transfers do not wait for them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Transfers:
    """Pulls into and pushes out of one store."""

    board: JobBoard
    store: Store
    keys: NodeKeys
    trust: TrustList
    peers: PeerBook
    settings: Settings

    async def run(self) -> None:
        """Until cancelled; transfers under way then end after the chunk in hand and wait for the next start."""
        async with asyncio.TaskGroup() as group:
            for number in range(MAX_TRANSFERS):
                group.create_task(self._lane(JobKind.PULL, JobKind.PUSH), name=f"transfers-{number}")
            for number in range(MAX_ASKING):
                group.create_task(self._lane(JobKind.ASK), name=f"asking-{number}")

    async def _lane(self, *kinds: JobKind) -> None:
        while True:
            await self._do(*await self.board.take(kinds))

    async def _do(self, job: Job, params: JobParams) -> None:
        task = asyncio.create_task(self._transfer(job, params, self.board.reporter(job.id)), name=f"job-{job.id}")
        with self.board.running(job.id, lambda: _cancel(task)):
            logger.info("job %s: %s, attempt %d", job.id, job.kind.value, job.attempts)
            try:
                result = await task
            except asyncio.CancelledError:
                if self.board.was_cancelled(job.id):
                    if isinstance(params, AskParams):
                        await withdraw(self.peers.get(params.peer), job.id, keys=self.keys, settings=self.settings)
                    self.board.finish(job.id, JobState.CANCELLED)
                else:
                    self.board.put_back(job.id)
                current = asyncio.current_task()
                if current is None or current.cancelling():  # the daemon is stopping, whatever the job's end
                    raise
            except CodedError as error:
                logger.warning("job %s: %s (%s)", job.id, error.message, error.code)
                self.board.finish(job.id, JobState.FAILED, failure=Failure.of(error))
            except Exception as error:
                logger.exception("job %s", job.id)
                unexpected = KvsyncError("job.unexpected", f"{type(error).__name__}: {error}", hint="see daemon.log")
                self.board.finish(job.id, JobState.FAILED, failure=Failure.of(unexpected))
            else:
                logger.info("job %s: done", job.id)
                self.board.finish(job.id, JobState.DONE, result=result)

    async def _transfer(self, job: Job, params: JobParams, progress: Progress) -> dict[str, object]:
        match params:
            case PullParams():
                return await pull_here(self.store, self.trust, self.peers, self.keys, self.settings, params, progress)
            case PushParams(peer, artifact):
                pushed = await push(
                    self.store,
                    self.peers.get(peer),
                    await asyncio.to_thread(self.store.resolve, artifact),
                    keys=self.keys,
                    settings=self.settings,
                    progress=progress,
                )
                return pushed.as_dict()
            case AskParams():
                return await self._ask(job, params, progress)
            case _:
                raise KvsyncError("job.unexpected", "a computation is no transfer")

    async def _ask(self, job: Job, params: AskParams, progress: Progress) -> dict[str, object]:
        """The job's id is the request's, so that an attempt after a restart finds what was asked before."""
        answered = await ask(
            self.store,
            self.trust,
            self.peers.get(params.peer),
            Question(job.id, params.compatibility, params.text, params.tokens, params.expect),
            keys=self.keys,
            settings=self.settings,
            fingerprints=params.fingerprints,
            progress=progress,
        )
        if params.name is not None and answered.artifact is not None:
            from kvsync.graft.deposit import set_name  # what graft needs loads no torch, but takes a while

            signer = self.keys.current().signer
            await asyncio.to_thread(set_name, self.store, signer, params.name, answered.artifact)
        return answered.as_dict() | {"name": params.name}


def _cancel(task: asyncio.Task[dict[str, object]]) -> None:
    task.cancel()
