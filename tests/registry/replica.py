"""One replica as a process of its own: `python -m tests.registry.replica WHERE SEED`. Works until it is killed.

Says one line for every change that was taken, after it was taken: provider, epoch, sequence.
"""

from __future__ import annotations

import random
import sys
import time

from benchmarks.registry import open_store
from kvsync_protocol.announcement import Moment, Statement, Withdrawal
from kvsync_registry.config import RegistryLimits
from kvsync_registry.errors import UnavailableError
from tests.registry.world import World, artifact

HOSTS = ("alpha", "beta", "gamma")
LIMITS = RegistryLimits(offers=20)


def main() -> None:
    where, seed = sys.argv[1:]
    rng = random.Random(int(seed))
    world = World(open_store(where), LIMITS)
    world.join(*HOSTS)
    print("ready", flush=True)
    while True:
        host = rng.choice(HOSTS)
        # Replicas hear the same provider in turns: whoever is later wins, and the other's words are stale.
        first = time.time_ns() // 1000
        epoch = 1 + first // 1_000_000
        said: list[Statement] = []
        for number in range(rng.randint(1, 12)):
            at = Moment(epoch, first % 1_000_000 * 100 + number)
            name = rng.randrange(30)
            if rng.random() < 0.2:
                said.append(Withdrawal(at, artifact(name)))
            else:
                blocks = ["all", name % 3, name, rng.randrange(2)]
                said.append(world.announcement(host, name, blocks, ttl_s=rng.choice([60, 3600]), at=at))
        try:
            outcomes = world.say(host, *said).outcomes
            taken = [one.at for one, outcome in zip(said, outcomes, strict=True) if outcome == "ok"]
            if taken:
                print(host, taken[-1].epoch, taken[-1].sequence, flush=True)
            if rng.random() < 0.3:
                world.lookup(host, ["all", rng.randrange(3)])
            if rng.random() < 0.1:
                world.now += rng.choice([0, 0, 70])
                world.registry.sweep()
        except UnavailableError as error:
            print("away", error.code, flush=True)


if __name__ == "__main__":
    main()
