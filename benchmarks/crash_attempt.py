"""One kill: which process, at which moment, and everything that must hold afterwards.

After each kill the dead one's files are examined, it is started again, and the transfer is made once more. Everything
that is not as promised is a line in the outcome's `problems`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from benchmarks import trap
from benchmarks.crash_world import PATIENCE_S, STREAMS, World
from benchmarks.soundness import registry_problems
from benchmarks.trap import Trap

MOMENT: Final = "moment"
KILLED: Final = -9
REFUSALS: Final = (3, 4, 5, 6, 7, 8)
"""Exit statuses by which a getter may say that its provider died."""

Scene = tuple[str, str, bool]
"""Who is killed, in what, and whether calls are counted from when it was ready instead of from its start."""

CALLS: Final[Mapping[Scene, Mapping[str, int]]] = {
    ("getter", "pull", False): {"write": 55, "fsync": 48, "rename": 17, "unlink": 3},
    ("provider", "pull", True): {"write": 38},
    ("registry", "pull", True): {"write": 130, "fsync": 22},
    ("getter", "push", False): {"write": 40},
    ("provider", "push", True): {"write": 60, "fsync": 25, "rename": 15, "unlink": 3},
    ("registry", "pull", False): {"write": 190, "fsync": 25},
    ("provider", "pull", False): {"write": 35, "fsync": 2, "rename": 1, "unlink": 1},
}
"""For each scene the calls that one thread makes in it, as counted by `strace -f`: a trap is set at one of them."""


@dataclass
class Outcome:
    """What came of one seed. `reached` is False when the victim did not get as far: then it was killed at rest."""

    seed: int
    victim: str
    action: str
    late: bool
    kind: str
    number: int
    reached: bool = False
    refetched: int = 0
    getter: int | None = None
    """Exit status of the transfer during which the kill came."""
    problems: list[str] = field(default_factory=list)

    def blame(self, *problems: str) -> None:
        self.problems += problems


def attempt(world: World, seed: int) -> Outcome:
    """Kill the one that the seed names, and see to it that nothing is lost by that."""
    rng, scenes = random.Random(seed), list(CALLS)
    scene = victim, action, late = scenes[seed % len(scenes)]
    most = {MOMENT: len(world.artifact(action).chunks), **CALLS[scene]}
    kind = list(most)[seed // len(scenes) % len(most)]
    out = Outcome(seed, victim, action, late, kind, rng.randint(1, most[kind]))
    trapped = None if kind == MOMENT else Trap(kind, out.number)
    world.begin(action)
    {"getter": _getter, "provider": _provider, "registry": _registry}[victim](world, out, rng, trapped)
    if world.transfer(action).wait(PATIENCE_S):
        out.blame("the second transfer failed")
    _check(world, out)
    return out


def _getter(world: World, out: Outcome, rng: random.Random, trapped: Trap | None) -> None:
    process = world.transfer(out.action, trapped)
    if trapped is None:
        world.await_moved(out.number, process)
        time.sleep(rng.random() * 0.02)
        process.kill()
    out.getter = process.wait(PATIENCE_S)
    out.reached = out.getter == KILLED
    if out.getter not in (KILLED, 0):
        out.blame(f"the getter ended with {out.getter}")
    out.blame(*world.problems_of("getter"))


def _provider(world: World, out: Outcome, rng: random.Random, trapped: Trap | None) -> None:
    with _in_trap(world, out, trapped) as ready:
        if ready:
            process = world.transfer(out.action)
            if trapped is None:
                world.await_moved(out.number, process)
                time.sleep(rng.random() * 0.02)
                out.reached = world.kill("provider")
            out.getter = process.wait(PATIENCE_S)
            if out.getter and out.getter not in REFUSALS:
                out.blame(f"the getter ended with {out.getter}")
        out.reached |= not world.kill("provider")
    out.blame(*world.problems_of("provider"), *world.problems_of("getter"))
    world.start("provider")


def _registry(world: World, out: Outcome, rng: random.Random, trapped: Trap | None) -> None:
    with _in_trap(world, out, trapped) as ready:
        moving, process = world.transfer(out.action), world.process("registry")
        if ready:
            until = None if trapped is not None else rng.randint(1, 30)
            world.teller.tell(rng, lambda: process.poll() is not None, until, process.kill)
        out.getter = moving.wait(PATIENCE_S)
        if out.getter:  # whoever pulls goes on with what it knows
            out.blame(f"without a registry the getter ended with {out.getter}")
        out.reached = not world.kill("registry")
    out.blame(*(f"registry: {each}" for each in registry_problems(world.homes["registry"].registry_file)))
    world.start("registry")
    out.blame(*world.teller.lost())


@contextmanager
def _in_trap(world: World, out: Outcome, trapped: Trap | None) -> Iterator[bool]:
    """The victim, a server, in its trap, if there is one; whether it came to be ready."""
    if trapped is None:
        yield True
    elif out.late:
        with trap.attached(world.process(out.victim), trapped):
            yield True
    else:
        world.kill(out.victim)
        yield world.start(out.victim, trapped)


def _check(world: World, out: Outcome) -> None:
    moved, artifact = world.moved, world.artifact(out.action)
    out.refetched = len(moved) - len(set(moved))
    if set(moved) != set(range(len(artifact.chunks))):
        out.blame("not every chunk came from the one that has it")
    if out.refetched > (0 if out.victim == "registry" else STREAMS):
        out.blame(f"{out.refetched} chunks moved twice")
    out.blame(*world.problems_of("getter"), *world.problems_of("provider"), *world.lacking(out.action))
    if out.action == "pull":
        out.blame(*world.untold(artifact.id))
