"""Attacks with bytes that are signed, whole and untouched, and mean something else here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, DynamicSlidingWindowLayer

from kvsync.engines.engine import Engine
from kvsync.engines.transformers import wrap
from kvsync.engines.transformers.forward import Forward
from kvsync.pack import ArtifactReader
from kvsync_protocol.digest import sha256
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.layout import DType, LayerKind
from tests.engines.tiny_models import BLOCK, FAMILIES, MIXED, make_model, some_tokens
from tests.sabotage.forging import canary, claiming, compute, describe, honest, numerics, pack, typed
from tests.sabotage.liar import Story
from tests.sabotage.models import GEMMA, PHI, said
from tests.sabotage.world import DOCUMENT, OTHER, QUESTION, RIGHT, WRONG, World, compared

LONG = some_tokens(4 * BLOCK + 9, seed=4)
PREFACE = some_tokens(7, seed=5)


async def other_weights(world: World) -> str:
    """Another model of the same shapes (instruct for base), whose host copies the victim's numerics."""
    engine, other = world.uses(world.engines.victim()), world.engines.other_weights()
    prints = Fingerprints(other.fingerprints.compatibility, engine.fingerprints.numerics)
    return await world.takes(Story(honest(other, DOCUMENT, prints=prints)), engine)


async def other_scaling(world: World) -> str:
    """An honest host with another RoPE scaling, which begins only behind the end of the canary."""
    engine = world.uses(world.engines.victim(PHI))
    scaled = {"long_factor": [4.0] * 6, "short_factor": [1.0] * 6, "rope_type": "longrope", "rope_theta": 10000.0}
    other = world.engines.edited(PHI, rope_parameters={**scaled, "original_max_position_embeddings": 200})
    assert canary(other) == canary(engine)
    return await world.takes(Story(honest(other, LONG)), engine, LONG)


async def other_attention(world: World) -> str:
    """A host with another attention implementation, and a canary copied from the victim."""
    engine, other = world.uses(world.engines.victim()), world.engines.other_attention()
    prints = Fingerprints(engine.fingerprints.compatibility, numerics(other, canary=canary(engine)))
    return await world.takes(Story(honest(other, DOCUMENT, prints=prints)), engine)


async def another_build(world: World) -> str:
    """An honest host whose every version string is the victim's, and whose arithmetic is not."""
    engine, other = world.uses(world.engines.victim()), world.engines.another_build()
    drift = engine.fingerprints.numerics.differences(other.fingerprints.numerics)
    assert [difference.field for difference in drift] == ["canary"]
    assert engine.fingerprints.compatibility == other.fingerprints.compatibility
    return await world.takes(Story(honest(other, DOCUMENT)), engine)


async def another_document(world: World) -> str:
    """An honest artifact of another document, asked for by its id."""
    engine = world.uses(world.engines.victim())
    return await world.takes(Story(honest(engine, OTHER)), engine)


async def another_place(world: World) -> str:
    """An honest artifact of the victim's document, which stands behind a preface there."""
    engine = world.uses(world.engines.victim())
    return await world.takes(Story(honest(engine, DOCUMENT)), engine, [*PREFACE, *DOCUMENT])


async def inside_a_block(world: World) -> str:
    """A caller wants the state between two cuts, where no fresh run has one."""
    engine = world.uses(world.engines.victim(GEMMA))
    genuine = honest(engine, DOCUMENT)
    await world.pull(Story(genuine), genuine.id, engine)
    world.begin()
    stored = world.victim.store.artifact(genuine.id)
    reader = ArtifactReader(world.victim.store, genuine.id, stored.manifest.layout, stored.leaves())
    reached = set()
    for place in range(BLOCK + 7, 2 * BLOCK, 10):  # at some of them rounding may happen to be the same
        context = engine.restore(reader, place)
        got = said(engine, context, engine.extend(context, QUESTION, engine.schedule.with_boundary(place)))
        reached.add(compared(got, world.engines.fresh(engine, DOCUMENT[:place], QUESTION)))
    return WRONG if WRONG in reached else RIGHT


async def moved_meanwhile(world: World) -> str:
    """The caller's own `generate` moves the grafted cache before the question is asked."""
    engine = world.uses(world.engines.victim())
    genuine = honest(engine, DOCUMENT)
    await world.pull(Story(genuine), genuine.id, engine)
    world.begin()
    found = world.graft(engine, genuine.id, [*DOCUMENT, *QUESTION])
    with torch.no_grad():
        Forward(engine.model, torch.device("cpu"))(found.cache, PREFACE, keep=1)  # type: ignore[attr-defined]
    got = said(engine, found.context, engine.extend(found.context, found.next_tokens, found.schedule))
    return compared(got, world.engines.fresh(engine, DOCUMENT, QUESTION))


async def other_window(world: World) -> str:
    """The same weights under another window; only the signed geometry tells."""
    engine, other = world.uses(world.engines.victim(GEMMA)), world.engines.edited(GEMMA, sliding_window=24)
    layout = claiming(engine.layout(len(DOCUMENT)), LayerKind.SLIDING, 24)
    return await world.takes(_told_by_layout(engine, other, layout), engine)


async def other_kinds(world: World) -> str:
    """The same weights with full attention everywhere; only the signed geometry tells."""
    engine = world.uses(world.engines.victim(GEMMA))
    other = world.engines.edited(GEMMA, layer_types=["full_attention"] * len(MIXED))
    layout = claiming(engine.layout(len(DOCUMENT)), LayerKind.FULL, None)
    return await world.takes(_told_by_layout(engine, other, layout), engine)


async def other_type(world: World) -> str:
    """16-bit floats of another type; only the signed geometry tells."""
    engine = world.uses(world.engines.victim(dtype=DType.BF16))
    layout = engine.layout(len(DOCUMENT))
    chunks = pack(compute(engine, DOCUMENT).as_f16(), layout)
    return await world.takes(Story(describe(engine, DOCUMENT, chunks, layout=typed(layout, DType.F16))), engine)


def _told_by_layout(engine: Engine, other: Engine, layout: Any) -> Story:
    """What `other` computes, with everything said of it but the geometry being the victim's."""
    chunks = pack(compute(other, DOCUMENT), layout)
    return Story(describe(engine, DOCUMENT, chunks, layout=layout))


class MindfulLayer(DynamicSlidingWindowLayer):  # type: ignore[misc]
    """Adds to every value the mean of all values before, once there is a block of them.

    No attribute of a sliding layer shows it, and a probe of a few tokens does not either.
    """

    __slots__ = ("memory",)

    def update(self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen, total = getattr(self, "memory", (0, torch.zeros(())))
        self.memory = seen + values.shape[-2], total + values.sum(dim=-2, keepdim=True)
        full_keys, full_values = super().update(keys, values, *args, **kwargs)
        return full_keys, full_values + total / seen if seen >= BLOCK else full_values


async def unknown_layers(world: World) -> str:
    """A model whose layers keep more than their class's parent does."""
    with _mapped("sliding_attention", MindfulLayer):
        engine = world.uses(wrap(make_model(FAMILIES[GEMMA]()), threads=1, block_tokens=BLOCK))
        return await world.takes(Story(honest(engine, DOCUMENT)), engine)


async def kept_elsewhere(world: World) -> str:
    """A model that keeps a state of each sequence outside of its cache."""
    model = world.engines.model()
    plain, kept = model.forward, WeakKeyDictionary[Any, Any]()

    @wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        out = plain(*args, **kwargs)
        sequence = out.past_key_values.layers[0]
        before = kept.get(sequence, 0.0)
        kept[sequence] = before + out.logits[0, -1].mean()
        out.logits = out.logits * (1 + before)
        return out

    model.forward = forward
    engine = world.uses(wrap(model, threads=1, block_tokens=BLOCK))
    return await world.takes(Story(honest(engine, DOCUMENT)), engine)


@contextmanager
def _mapped(kind: str, layer: type) -> Iterator[None]:
    """transformers makes such layers of this class inside the block."""
    genuine = DYNAMIC_LAYER_TYPE_MAPPING[kind]
    DYNAMIC_LAYER_TYPE_MAPPING[kind] = layer
    try:
        yield
    finally:
        DYNAMIC_LAYER_TYPE_MAPPING[kind] = genuine


async def other_template(world: World) -> str:
    """A document wrapped by another chat template, continued by somebody who relies on their own."""
    engine = world.uses(world.engines.victim())
    theirs, mine = [3, 1, 4, *DOCUMENT, 1, 5], [9, *DOCUMENT, 2, 6]
    made = honest(engine, theirs, template=sha256(b"their template"))
    await world.pull(Story(made), made.id, engine)
    world.begin()
    tokens = [*world.victim.store.artifact(made.id).tokens(), *QUESTION]
    got = world.answer(engine, made.id, tokens, template=sha256(b"my template"))
    return compared(got, world.engines.fresh(engine, mine, QUESTION))


async def rewritten_weights(world: World) -> str:
    """The model's owner writes its weights after the fingerprint was taken."""
    genuine = honest(world.engines.victim(), DOCUMENT)
    model = world.engines.model()
    engine = wrap(model, threads=1, block_tokens=BLOCK)
    await world.pull(Story(genuine), genuine.id, engine)
    world.begin()
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    got = world.answer(engine, genuine.id, [*DOCUMENT, *QUESTION])
    return compared(got, world.engines.fresh(world.engines.victim(), DOCUMENT, QUESTION))
