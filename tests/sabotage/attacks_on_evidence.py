"""A consistent forgery by a signer whom the victim trusts: all bytes are as signed, and only recomputing tells."""

from __future__ import annotations

from kvsync.evidence.audit import audit
from kvsync.evidence.selection import Selection
from tests.sabotage.cast import SECOND, SIGNER, STRANGER
from tests.sabotage.forging import corrupt, honest
from tests.sabotage.liar import Story
from tests.sabotage.world import DOCUMENT, QUESTION, World, compared
from tests.sync.forging import attested


async def never_audited(world: World) -> str:
    """A trusted signer signs one wrong bit in one block; only its own key and a stranger's say it was audited."""
    engine = world.uses(world.engines.victim())
    forged = corrupt(engine, DOCUMENT)
    said = attested(forged, SIGNER), attested(forged, STRANGER)
    return await world.takes(Story(forged, attestations=said), engine, require_audited_percent=100)


async def found_wrong(world: World) -> str:
    """The same forgery, which another trusted key has audited elsewhere and found wrong."""
    engine = world.uses(world.engines.victim())
    forged = corrupt(engine, DOCUMENT)
    world.liar.keep(forged)
    assert audit(world.liar.store, engine, SECOND, forged.id, Selection()).first_wrong == 2
    said = tuple(world.liar.store.attestations(forged.id))
    return await world.takes(Story(forged, attestations=said), engine)


async def found_wrong_here(world: World) -> str:
    """The same forgery, which the victim took without asking for audits, and found wrong by one of its own."""
    engine = world.uses(world.engines.victim())
    forged = corrupt(engine, DOCUMENT)
    await world.pull(Story(forged), forged.id, engine)
    audit(world.victim.store, engine, world.victim.keys.signer, forged.id, Selection())
    world.begin()
    got = world.answer(engine, forged.id, [*DOCUMENT, *QUESTION])
    return compared(got, world.engines.fresh(engine, DOCUMENT, QUESTION))


async def one_against_two(world: World) -> str:
    """The same forgery, by one signer where two that have computed the same are demanded."""
    engine = world.uses(world.engines.victim())
    return await world.takes(Story(corrupt(engine, DOCUMENT)), engine, require_signers=2)


async def word_against_word(world: World) -> str:
    """The same forgery, where another signer's artifact of the same computation is here already."""
    engine = world.uses(world.engines.victim())
    genuine = honest(engine, DOCUMENT, key=SECOND)
    await world.pull(Story(genuine), genuine.id, engine)
    world.begin()
    return await world.takes(Story(corrupt(engine, DOCUMENT)), engine)
