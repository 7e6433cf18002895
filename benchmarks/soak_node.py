"""One of the processes of benchmarks/soak.py: random work on a home's store, and a watch over what must not be lost.

    python -m benchmarks.soak_node NUMBER PROCESSES SEED HOME [--serve]

Lines on stdin say what to do: `work SECONDS` works and answers with what came of it, once everything is let go of;
`rest` answers with the descriptors of this process, when nobody is connected any more. What is pinned, held, served
or in an open draft is claimed: after every operation one claim is read and hashed, at the end all are. Each process
pins artifacts of its own numbers only, so that no other unpins them.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Final

from benchmarks.seeded import Artifact
from benchmarks.soak_watch import ARTIFACTS, Claim, Watch, artifact, descriptors, kept
from kvsync import log
from kvsync.config import Home, Settings
from kvsync.keys import NodeKeys, Peer, PeerBook, TrustList
from kvsync.pack.reader import ArtifactReader
from kvsync.peer.server import PeerServer
from kvsync.store import PullDraft, Store, StoreLimits
from kvsync.sync import pull, push
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError
from kvsync_protocol.limits import KiB
from kvsync_protocol.ref import Ref

HOMES: Final = 2
QUOTA: Final = 450 * KiB
"""Room for about a quarter of them."""
DRAFT_TTL_S: Final = 3.0
LIMITS: Final = StoreLimits(quota_bytes=QUOTA, free_floor_bytes=0, draft_ttl_s=DRAFT_TTL_S)
SETTINGS: Final = Settings(free_floor_bytes=0, streams=2, stall_timeout_s=5, transfer_deadline_s=30)
PAUSE_S: Final = 0.05
"""The longest between two operations: the machine is not to be kept busy."""
CLAIMS: Final = 3
PINS: Final = 2
EXPECTED: Final = frozenset(
    {
        *("store.unknown_artifact", "store.pinned", "store.in_use", "store.quota", "store.busy", "store.partial"),
        *("store.unknown_name", "trust.rollback", "pull.part", "peer.chunk_gone"),
    }
)
"""What others' work may make of an operation."""


class Worker:
    """Works on one store; all its operations are coroutines."""

    def __init__(self, number: int, processes: int, seed: int, home: Home, store: Store) -> None:
        self._number, self._rng, self._home, self._store = number, random.Random(seed), home, store
        self._keys = NodeKeys.load(home)
        self._trust = TrustList(home, self._keys.signer.public)
        self._watch = Watch(store)
        sharing = -(-processes // HOMES)  # processes on one home
        self._own = [each for each in range(ARTIFACTS) if each % sharing == number // HOMES]
        self._watch.pins = {n for n in self._own if (home.store_dir / "pins" / artifact(n).id.hex).exists()}
        self.done: Counter[str] = Counter()
        self._operations: dict[Callable[[], Awaitable[None]], int] = {
            self.deposit: 6,
            self.pull: 6,
            self.push: 4,
            self.pin: 3,
            self.unpin: 2,
            self.rm: 3,
            self.gc: 3,
            self.fsck: 1,
            self.name: 2,
            self.hold: 3,
            self.serve: 3,
            self.draft: 3,
            self.read: 2,
            self.let_go: 5,
            self.reopen: 1,
        }

    async def work(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        operations, weights = list(self._operations), list(self._operations.values())
        while time.monotonic() < end:
            [operation] = self._rng.choices(operations, weights)
            # Whoever has a draft open waits for no other: two might wait for each other's.
            if not (operation in (self.deposit, self.pull, self.draft) and self._watch.drafting):
                await self._do(operation)
            await asyncio.to_thread(self._watch.verify_one, self._rng)
            await asyncio.sleep(self._rng.random() * PAUSE_S)
        await asyncio.to_thread(self._watch.verify_all)
        while self._watch.claims:
            await self._do(self.let_go)

    async def _do(self, operation: Callable[[], Awaitable[None]]) -> None:
        try:
            await operation()
        except CodedError as error:
            self.done[f"{operation.__name__}: {error.code}"] += 1
            if error.code not in EXPECTED:
                self._watch.problems.append(f"{operation.__name__}: {error.code}: {error.message}")
        else:
            self.done[operation.__name__] += 1

    def report(self) -> dict[str, object]:
        """What was done and what went wrong since the last one."""
        found = {"done": self.done + self._watch.verified, "problems": self._watch.problems}
        self.done, self._watch.verified, self._watch.problems = Counter(), Counter(), []
        return dict(found)

    # what is done

    def _any(self) -> Artifact:
        return artifact(self._rng.randrange(ARTIFACTS))

    def _deadline(self) -> float:
        return time.monotonic() + 5

    async def deposit(self) -> None:
        """As a computation does; now and then it stops in the middle."""
        made = self._any()
        stop = self._rng.randrange(len(made.chunks)) if self._rng.random() < 0.2 else len(made.chunks)

        def compute() -> None:
            plan = sha256(f"plan of {made.id}".encode())
            size = made.manifest.tree.total_bytes
            with self._store.compute_draft(plan, expected_bytes=size, deadline=self._deadline()) as draft:
                for chunk in made.chunks[len(draft.leaves) : stop]:
                    draft.append(chunk)
                if len(draft.leaves) == len(made.chunks):
                    draft.publish(*made.parts)

        await asyncio.to_thread(compute)

    async def pull(self) -> None:
        """From the other home, all or a part; now and then it is cancelled."""
        blocks = self._rng.randrange(1, 5) if self._rng.random() < 0.3 else None
        work = pull(
            self._store,
            self._trust,
            self._peer(),
            str(self._any().id),
            keys=self._keys,
            settings=SETTINGS,
            fingerprints=None,
            blocks=blocks,
        )
        await self._maybe_cancelled(work)

    async def push(self) -> None:
        stored = await asyncio.to_thread(self._store.artifacts)
        if stored:
            found = self._rng.choice(stored).artifact
            await self._maybe_cancelled(push(self._store, self._peer(), found, keys=self._keys, settings=SETTINGS))

    async def _maybe_cancelled(self, work: Awaitable[object]) -> None:
        task = asyncio.ensure_future(work)
        await asyncio.wait([task], timeout=self._rng.random() * 0.3 if self._rng.random() < 0.15 else None)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            self.done["cancelled"] += 1

    def _peer(self) -> Peer:
        [peer] = PeerBook(self._home).peers()
        return peer

    async def pin(self) -> None:
        number = self._rng.choice(self._own)
        if len(self._watch.pins) < PINS:
            await asyncio.to_thread(self._store.pin, artifact(number).id)
            self._watch.pins.add(number)

    async def unpin(self) -> None:
        if self._watch.pins:
            number = self._rng.choice(sorted(self._watch.pins))
            self._watch.pins.discard(number)
            await asyncio.to_thread(self._store.unpin, artifact(number).id)

    async def rm(self) -> None:
        await asyncio.to_thread(self._store.remove, self._any().id)

    async def gc(self) -> None:
        self.done["evicted by gc"] += len((await asyncio.to_thread(self._store.gc)).evicted)

    async def fsck(self) -> None:
        report = await asyncio.to_thread(self._store.fsck)
        self._watch.problems += [f"fsck: {finding}" for finding in report.findings]

    async def name(self) -> None:
        """A name of this process's own; what it stands for is not evicted."""
        name, signer = f"soak/{self._number}", self._keys.signer
        if self._rng.random() < 0.5:
            await asyncio.to_thread(self._store.remove_ref, name)
        else:
            sequence = await asyncio.to_thread(self._store.ref_sequence, name, signer.public)
            ref = Ref(name, self._any().id, sequence + 1)
            await asyncio.to_thread(self._store.set_ref, ref, ref.seal(signer), signer.public)

    async def hold(self) -> None:
        number, stack = self._rng.randrange(ARTIFACTS), ExitStack()
        stored = await asyncio.to_thread(stack.enter_context, self._store.hold(artifact(number).id))
        await self._claim(Claim("held", number, kept(stored), stack))

    async def serve(self) -> None:
        number, stack = self._rng.randrange(ARTIFACTS), ExitStack()
        served = await asyncio.to_thread(stack.enter_context, self._store.serve(artifact(number).id))
        leaves = [served.table.leaves[index] for index in await asyncio.to_thread(served.here)]
        await self._claim(Claim("served", number, leaves, stack))

    async def draft(self) -> None:
        """Some chunks of an artifact, kept in an open draft; it is published when it is let go of, or left."""
        number, stack = self._rng.randrange(ARTIFACTS), ExitStack()
        made, finish = artifact(number), self._rng.random() < 0.5
        order = self._rng.sample(range(len(made.chunks)), len(made.chunks) // 2)

        def begin() -> PullDraft:
            draft = stack.enter_context(closing(self._store.pull_draft(*made.parts, deadline=self._deadline())))
            try:
                for index in order:
                    draft.put(index, made.chunks[index])
            except BaseException:
                stack.close()
                raise
            return draft

        def end() -> None:
            if finish:
                for index in draft.missing():
                    draft.put(index, made.chunks[index])
                draft.publish()

        draft = await asyncio.to_thread(begin)
        stack.callback(end)
        await self._claim(Claim("drafted", number, [draft.leaves.leaves[index] for index in order], stack))

    async def _claim(self, claim: Claim) -> None:
        self._watch.claims.append(claim)
        if len(self._watch.claims) > CLAIMS:
            await self.let_go()

    async def let_go(self) -> None:
        if self._watch.claims:
            claim = self._watch.claims.pop(self._rng.randrange(len(self._watch.claims)))
            await asyncio.to_thread(claim.stack.close)

    async def read(self) -> None:
        """As a graft reads."""

        def logits() -> None:
            with self._store.hold(self._any().id) as stored:
                if stored.extent is None:
                    reader = ArtifactReader(self._store, stored.artifact, stored.manifest.layout, stored.leaves())
                    reader.logits()

        await asyncio.to_thread(logits)

    async def reopen(self) -> None:
        def again() -> None:
            with Store.open(self._home.store_dir, LIMITS) as store:
                store.usage()

        await asyncio.to_thread(again)


@asynccontextmanager
async def serving(home: Home, store: Store, *, wanted: bool) -> AsyncIterator[PeerServer | None]:
    """The home's peer server, where this process is the one that runs it."""
    if not wanted:
        print(json.dumps({"address": ""}), flush=True)
        yield None
        return
    keys = NodeKeys.load(home)
    server = PeerServer(store, keys, home, TrustList(home, keys.signer.public), SETTINGS)
    host, port = await server.start()
    print(json.dumps({"address": f"{host}:{port}"}), flush=True)
    try:
        yield server
    finally:
        await server.stop()


async def run(number: int, processes: int, seed: int, root: Path, *, serve: bool) -> None:
    home = Home(root)
    with Store.open(home.store_dir, LIMITS) as store:
        async with serving(home, store, wanted=serve) as server:
            worker = Worker(number, processes, seed, home, store)
            await worker.reopen()  # SQLite keeps the descriptors of closed connections, for the next ones to use
            while words := (await asyncio.to_thread(sys.stdin.readline)).split():
                if words[0] == "work":
                    await worker.work(float(words[1]))
                    said: dict[str, object] = worker.report()
                else:
                    give_up = time.monotonic() + 30
                    while server is not None and (server.connections or server.offers):
                        if time.monotonic() > give_up:
                            break
                        await asyncio.sleep(0.1)
                    gc.collect()
                    said = {"descriptors": descriptors()}
                print(json.dumps(said), flush=True)


def main() -> int:
    log.configure()
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("processes", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("home", type=Path)
    parser.add_argument("--serve", action="store_true")
    words = parser.parse_args()
    asyncio.run(run(words.number, words.processes, words.seed, words.home, serve=words.serve))
    return 0


if __name__ == "__main__":
    sys.exit(main())
