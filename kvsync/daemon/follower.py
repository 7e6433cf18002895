"""Keeps this node in step with names that others give: asks what there is, judges it, and queues pulls.

    peers, registries ─► Hearsay ─► newest trusted ref of each followed name ─► pull job ─► in step
                                        ▲                                          │
                                        └── again, later each time ◄── failing ◄───┘

A ref counts when a signer that may give the name has signed it, it has not expired, and nothing later is known here.
The pull itself judges the artifact, under the settings and the follow's own stricter rules.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvsync.config import Home, Settings
from kvsync.daemon.board import JobBoard
from kvsync.daemon.followed import FAILING, FETCHING, IN_STEP, Followed, load_followed, save_followed
from kvsync.daemon.follows import Follow, Follows
from kvsync.daemon.hearsay import Heard, Hearsay, Origins
from kvsync.daemon.messages import JobKind, JobState, Submission, new_job_id
from kvsync.daemon.network_status import FollowState
from kvsync.daemon.transfer_params import PullParams
from kvsync.errors import NotFoundError
from kvsync.keys import TrustList
from kvsync.store import Store, StoredRef
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import MAX_PROVIDERS

TICK_S: Final = 1.0
"""How often the list and the jobs under way are looked at."""

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Follower:
    """For one event loop, the board's own."""

    home: Home
    board: JobBoard
    store: Store
    trust: TrustList
    settings: Settings
    hearsay: Hearsay
    _follows: list[Follow] | None = None
    _followed: dict[str, Followed] = field(default_factory=dict)
    _asked: float | None = None

    def state(self) -> FollowState:
        count: defaultdict[str, int] = defaultdict(int)
        for each in self._followed.values():
            count[each.state] += 1
        return FollowState(
            len(self._follows or ()), count[IN_STEP], count[FETCHING], count[FAILING], self.hearsay.silent
        )

    async def run(self) -> None:
        """Until cancelled; jobs under way go on at the next start."""
        try:
            self._followed = await asyncio.to_thread(load_followed, self.home)
        except CodedError as error:
            logger.error("what was followed is forgotten: %s", error)
        while True:
            try:
                await self._step()
            except CodedError as error:
                logger.error("following goes on later: %s", error)
                self._asked = time.monotonic()
            await asyncio.sleep(TICK_S)

    async def _step(self) -> None:
        follows = await asyncio.to_thread(Follows(self.home).follows)
        before = dict(self._followed)
        if follows != self._follows:
            before_this, self._follows, self._asked = self._follows, follows, None
            self._forget(before_this)
        self._settle()
        due = self._asked is None or time.monotonic() - self._asked >= self.settings.follow_interval_s
        if follows and due:
            self._asked = time.monotonic()
            await self._ask()
        if self._followed != before:
            await asyncio.to_thread(save_followed, self.home, list(self._followed.values()))

    def _rule(self, name: str) -> Follow | None:
        return _rule(self._follows or (), name)

    def _forget(self, former: Sequence[Follow] | None) -> None:
        """Let go of what is followed no longer, and of what was fetched or refused under other rules than now's."""
        for name, each in list(self._followed.items()):
            rule = self._rule(name)
            changed = former is not None and rule != _rule(former, name)
            if rule is None or (changed and each.state != IN_STEP):
                self._cancel(each)
                del self._followed[name]

    def _settle(self) -> None:
        """Take note of the jobs that have ended."""
        for name, each in list(self._followed.items()):
            if each.state != FETCHING or each.job is None:
                continue
            try:
                job = self.board.get(each.job)
            except NotFoundError:  # its queue was lost
                self._followed[name] = each.failed("job.unknown_id", 0)
                continue
            if job.state is JobState.DONE:
                self._followed[name] = Followed(name, each.artifact, each.sequence, IN_STEP)
            elif job.state.final:
                code = "job.crashed" if job.failure is None else job.failure.code
                logger.warning("%s is not in step: %s", name, code)
                self._followed[name] = each.failed(code, int(time.time()))

    async def _ask(self) -> None:
        """Look at every name that anybody shows, and begin what is to be fetched."""
        heard: defaultdict[str, list[Heard]] = defaultdict(list)
        for each in await self.hearsay.refs():
            if self._rule(each.name) is not None:
                heard[each.name].append(each)
        kept = {ref.name: ref for ref in await asyncio.to_thread(self.store.refs)}
        for name in sorted(heard):
            if await asyncio.to_thread(self._unchanged, kept.get(name), heard[name]):
                continue
            newest = await asyncio.to_thread(self._newest, heard[name])
            if newest is not None:
                await self._follow(name, newest, heard[name], kept.get(name))

    def _unchanged(self, kept: StoredRef | None, heard: Sequence[Heard]) -> bool:
        """A name in step of which nobody says anything new; nothing of it is judged again."""
        before = self._followed.get(kept.name) if kept is not None else None
        if kept is None or before is None or before.state != IN_STEP:
            return False
        if (before.artifact, before.sequence) != (kept.artifact, kept.sequence):
            return False
        if any(each.sequence > kept.sequence for each in heard):
            return False
        try:
            return self.store.artifact(kept.artifact).extent is None
        except CodedError:
            return False  # removed, or damaged

    def _newest(self, heard: Sequence[Heard]) -> Heard | None:
        """The highest sequence that may be kept here, if any."""
        for each in sorted(heard, key=lambda each: -each.sequence):
            try:
                ref, signers = self.trust.judge_ref(each.envelope)
                ref.check_fresh(int(time.time()))
                self.store.check_ref(ref, signers, self.trust.owners(ref.name, signers))
            except CodedError as error:
                logger.debug("%s as %s shows it: %s", each.name, each.peer or "a registry", error)
                continue
            return each
        return None

    async def _follow(self, name: str, newest: Heard, heard: Sequence[Heard], kept: StoredRef | None) -> None:
        before, rule = self._followed.get(name), self._rule(name)
        same = before is not None and (before.artifact, before.sequence) == (newest.artifact, newest.sequence)
        if rule is None or (same and before is not None and not self._due(before)):
            return
        if await asyncio.to_thread(self._here, newest, kept):
            self._followed[name] = Followed(name, newest.artifact, newest.sequence, IN_STEP)
            return
        if before is not None and not same:
            self._cancel(before)
        failures = before.failures if same and before is not None else 0
        entry = Followed(name, newest.artifact, newest.sequence, FETCHING, None, failures)
        showing = [each.peer for each in heard if each.peer is not None and each.artifact == newest.artifact]
        told = await self.hearsay.providers(newest.artifact)
        origins = Origins(tuple(dict.fromkeys((*showing, *told.peers))), told.hints)
        self._followed[name] = self._begin(entry, newest, rule, origins)

    def _due(self, before: Followed) -> bool:
        if before.state == FETCHING:
            return False
        return before.state == IN_STEP or time.time() >= before.again

    def _here(self, newest: Heard, kept: StoredRef | None) -> bool:
        """The very ref is kept, and what it stands for is all here."""
        if kept is None or (kept.artifact, kept.sequence) != (newest.artifact, newest.sequence):
            return False
        stored = self.store.whole(newest.artifact)
        return stored is not None and stored.extent is None

    def _begin(self, entry: Followed, newest: Heard, rule: Follow, origins: Origins) -> Followed:
        now = int(time.time())
        if not origins.peers:
            return entry.failed("follow.no_provider", now)
        params = PullParams(
            origins.peers[0],
            str(newest.artifact),
            rule.fingerprints,
            origins.peers[1:MAX_PROVIDERS],
            origins.hints,
            newest.envelope,
            rule.policy,
        )
        job = new_job_id()
        try:
            self.board.submit(Submission(job, JobKind.PULL, params.as_json()))
        except CodedError as error:
            return entry.failed(error.code, now)
        logger.info("%s: sequence %d is fetched by job %s", entry.name, entry.sequence, job)
        return replace(entry, job=job)

    def _cancel(self, before: Followed) -> None:
        if before.job is not None and before.state == FETCHING:
            try:
                self.board.cancel(before.job)
            except NotFoundError:
                logger.debug("job %s is gone already", before.job)


def _rule(follows: Sequence[Follow], name: str) -> Follow | None:
    """The first that covers the name decides."""
    return next((follow for follow in follows if follow.covers(name)), None)
