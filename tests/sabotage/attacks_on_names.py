"""Attacks on names: what a signed ref says, by whom, and until when."""

from __future__ import annotations

from tests.sabotage.cast import SECOND
from tests.sabotage.forging import honest
from tests.sabotage.liar import Story
from tests.sabotage.world import DOCUMENT, OTHER, World, continued, named


async def another_name(world: World) -> str:
    """A peer answers a request by name with what its signer has given another name."""
    engine = world.uses(world.engines.victim())
    sent = honest(engine, OTHER)
    report = await world.pull(Story(sent, (named(sent.id, 1, name="other"),)), "doc", engine)
    return continued(world, engine, report.artifact)


async def name_out_of_bounds(world: World) -> str:
    """A signer who is trusted for names of a laboratory gives another."""
    engine = world.uses(world.engines.victim())
    world.victim.trust.add("second", SECOND.public, names=["lab/*"])
    theirs = honest(engine, OTHER, key=SECOND)
    await world.pull(Story(theirs, (named(theirs.id, 1, SECOND),)), "doc", engine)
    return by_name(world, theirs.id.hex)


async def rollback(world: World) -> str:
    """A peer answers with a ref that its signer has replaced since."""
    engine = world.uses(world.engines.victim())
    old, new = honest(engine, OTHER), honest(engine, DOCUMENT)
    await world.pull(Story(new, (named(new.id, 2),)), "doc", engine)
    world.begin()
    await world.pull(Story(old, (named(old.id, 1),)), "doc", engine)
    return by_name(world, old.id.hex)


async def freeze(world: World) -> str:
    """A peer keeps on answering with a ref that was to be renewed long ago."""
    engine = world.uses(world.engines.victim())
    old = honest(engine, OTHER)
    await world.pull(Story(old, (named(old.id, 1, expires=1_000_000_000),)), "doc", engine)
    return by_name(world, old.id.hex)


async def taken_over(world: World) -> str:
    """Another trusted signer gives a name that is not theirs."""
    engine = world.uses(world.engines.victim())
    theirs, ours = honest(engine, OTHER), honest(engine, DOCUMENT)
    await world.pull(Story(ours, (named(ours.id, 1),)), "doc", engine)
    world.begin()
    await world.pull(Story(theirs, (named(theirs.id, 9, SECOND),)), "doc", engine)
    return by_name(world, theirs.id.hex)


def by_name(world: World, artifact: str) -> str:
    """Whether the name now stands for the attacker's artifact."""
    return "wrong artifact under the name" if world.victim.store.resolve("doc").hex == artifact else "nothing"
