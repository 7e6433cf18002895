"""Attacks on what is signed, hashed and named: by a lying peer, a stranger, a dishonest signer, a bad disk."""

from __future__ import annotations

from dataclasses import replace

from kvsync_protocol.digest import sha256
from kvsync_protocol.layout import DType
from kvsync_protocol.leaves import Leaf, LeafTable
from kvsync_protocol.limits import MiB
from kvsync_protocol.manifest import Tree
from kvsync_protocol.prefix import encode_tokens
from tests.sabotage.cast import STRANGER
from tests.sabotage.forging import compute, describe, flip, honest, pack, resigned, typed
from tests.sabotage.liar import Story
from tests.sabotage.world import DOCUMENT, OTHER, QUESTION, World, compared, continued

BAD = 1
"""The chunk that is tampered with, of an inner block."""


async def signature(world: World) -> str:
    """The signer's signature, moved to another manifest by the peer."""
    engine = world.uses(world.engines.victim())
    genuine, forged = honest(engine, DOCUMENT), honest(engine, OTHER)
    claimed = describe(engine, DOCUMENT, forged.chunks)
    envelope = replace(claimed.envelope, signatures=genuine.envelope.signatures)
    return await world.takes(Story(replace(claimed, envelope=envelope)), engine)


async def stranger(world: World) -> str:
    """A forgery, whole and consistent, under the forger's own key."""
    engine = world.uses(world.engines.victim())
    forged = describe(engine, DOCUMENT, honest(engine, OTHER).chunks, key=STRANGER)
    return await world.takes(Story(forged), engine)


async def two_trees(world: World) -> str:
    """A signer signs the genuine tree's root, which others have audited, over a forged leaf table."""
    engine = world.uses(world.engines.victim())
    genuine, forged = honest(engine, DOCUMENT), describe(engine, DOCUMENT, honest(engine, OTHER).chunks)
    tree = replace(forged.manifest.tree, root=genuine.manifest.tree.root)
    return await world.takes(Story(resigned(forged, replace(forged.manifest, tree=tree))), engine)


async def flipped_on_the_way(world: World) -> str:
    """A peer flips one bit of one chunk; its size stays."""
    engine = world.uses(world.engines.victim())
    genuine = honest(engine, DOCUMENT)
    chunks = [flip(chunk) if index == BAD else chunk for index, chunk in enumerate(genuine.chunks)]
    return await world.takes(Story(replace(genuine, chunks=chunks)), engine)


async def flipped_on_disk(world: World) -> str:
    """A disk flips one bit of one chunk after it was pulled and verified."""
    engine = world.uses(world.engines.victim())
    genuine = honest(engine, DOCUMENT)
    await world.pull(Story(genuine), genuine.id, engine)
    name = sha256(genuine.chunks[BAD]).hex
    path = world.victim.home.store_dir / "chunks" / name[:2] / name
    path.chmod(0o600)
    path.write_bytes(flip(genuine.chunks[BAD]))
    world.begin()
    got = world.answer(engine, genuine.id, [*DOCUMENT, *QUESTION])
    return compared(got, world.engines.fresh(engine, DOCUMENT, QUESTION))


async def small_promise(world: World) -> str:
    """A signer signs a small artifact, and a leaf table of chunks far larger than its geometry has."""
    engine = world.uses(world.engines.victim())
    genuine = honest(engine, DOCUMENT)
    chunks = [bytes([index]) * MiB for index in range(len(genuine.chunks))]
    table = LeafTable.of([Leaf(sha256(chunk), len(chunk)) for chunk in chunks])
    tree = Tree(table.root, len(chunks), genuine.manifest.tree.total_bytes)
    manifest = replace(genuine.manifest, leaf_table=sha256(table.encode()), tree=tree)
    large = resigned(replace(genuine, leaves=table.encode(), chunks=chunks), manifest)
    limit = 2 * genuine.manifest.tree.total_bytes
    await world.pull(Story(large), large.id, engine, settings={"max_artifact_bytes": limit})
    return stored_beyond(world, limit)


async def foreign_header(world: World) -> str:
    """A signer signs 16-bit floats of one type in files of the other; only the files' headers tell."""
    engine = world.uses(world.engines.victim(dtype=DType.BF16))
    layout = engine.layout(len(DOCUMENT))
    state = compute(engine, DOCUMENT)
    forged = describe(engine, DOCUMENT, pack(state.as_f16(), typed(layout, DType.F16)))
    return await world.takes(Story(forged), engine)


async def other_tokens(world: World) -> str:
    """A peer hands out the victim's token ids with another document's artifact."""
    engine = world.uses(world.engines.victim())
    lie = replace(honest(engine, OTHER), tokens=encode_tokens(DOCUMENT))
    return await world.takes(Story(lie), engine)


async def another_artifact(world: World) -> str:
    """A peer answers a request by id with another artifact, genuine and by the same signer."""
    engine = world.uses(world.engines.victim())
    wanted, sent = honest(engine, DOCUMENT), honest(engine, OTHER)
    report = await world.pull(Story(sent), wanted.id, engine)
    return continued(world, engine, report.artifact)


async def exchanged_on_disk(world: World) -> str:
    """A disk gives one artifact's three files under the id of another; both were pulled and verified."""
    engine = world.uses(world.engines.victim())
    wanted, other = honest(engine, DOCUMENT), honest(engine, OTHER)
    for artifact in (wanted, other):
        await world.pull(Story(artifact), artifact.id, engine)
    folder = world.victim.home.store_dir / "artifacts"
    for path in (folder / wanted.id.hex).iterdir():
        path.chmod(0o600)
        path.write_bytes((folder / other.id.hex / path.name).read_bytes())
    world.begin()
    return continued(world, engine, wanted.id)


async def too_large(world: World) -> str:
    """A signer's artifact is larger than what the victim takes."""
    engine = world.uses(world.engines.victim())
    genuine = honest(engine, DOCUMENT)
    limit = genuine.manifest.tree.total_bytes - 1
    await world.pull(Story(genuine), genuine.id, engine, settings={"max_artifact_bytes": limit})
    return stored_beyond(world, limit)


def stored_beyond(world: World, limit: int) -> str:
    """Whether more bytes were stored than one artifact may have."""
    stored = sum(path.stat().st_size for path in (world.victim.home.store_dir / "chunks").glob("*/*"))
    return "more stored than the limit" if stored > limit else "nothing"
