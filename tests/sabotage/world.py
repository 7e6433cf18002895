"""The victim of one attack: a node of its own with a store, a model and a context that is in use meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvsync.engines.engine import Context, Engine
from kvsync.graft import Graft, graft
from kvsync.sync import PullReport
from kvsync_protocol.digest import ArtifactId, sha256
from kvsync_protocol.envelope import Envelope
from kvsync_protocol.ref import Ref
from kvsync_protocol.signing import SigningKey
from tests.engines.tiny_models import some_tokens
from tests.sabotage.cast import SECOND, SIGNER
from tests.sabotage.liar import Liar, Story
from tests.sabotage.models import Engines, said
from tests.sync.nodes import Node

DOCUMENT = some_tokens(201, seed=1)
"""Three blocks and a part of one."""
OTHER = some_tokens(201, seed=2)
QUESTION = some_tokens(5, seed=3)

WRONG = "wrong logits"
RIGHT = "right logits"


@dataclass(frozen=True)
class Outcome:
    """How an attack ended: refused with this code, or what it reached."""

    refused: str = ""
    reached: str = ""
    touched: bool = False
    """Whether a refusal left anything of it in the store or in the live context."""


class World:
    """A victim that trusts two signers and knows one peer, which lies."""

    def __init__(self, root: Path, engines: Engines) -> None:
        self.engines = engines
        self.victim, self.liar = Node(root, "victim"), Node(root, "liar")
        self.liar.meet(self.victim, "get")
        self.victim.trust.add("signer", SIGNER.public)
        self.victim.trust.add("second", SECOND.public)
        self.live: tuple[Engine, Context] | None = None
        self._before: object = None
        self._false_before: set[str] = set()

    def close(self) -> None:
        self.victim.close()
        self.liar.close()

    # what the victim does

    def uses(self, engine: Engine) -> Engine:
        """From now on the victim has this model, with a context in use."""
        context = engine.new_context()
        engine.prefill(context, OTHER[:20], engine.schedule)
        self.live = engine, context
        self.begin()
        return engine

    async def pull(self, story: Story, wanted: object, engine: Engine | None = None, **options: Any) -> PullReport:
        prints = None if engine is None else engine.fingerprints
        async with self.liar.serving(partial(Liar, story=story)):
            return await self.victim.pull(self.liar, wanted, fingerprints=prints, **options)

    def graft(self, engine: Engine, artifact: ArtifactId, tokens: Sequence[int], **options: Any) -> Graft:
        """Raises what the graft was refused with."""
        store, trusted = self.victim.store, self.victim.trust.keys()
        found = graft(store, trusted, engine, tokens, artifact=artifact, **options)
        if found.report.refused is not None:
            assert (found.context.position, found.report.tokens_grafted) == (0, 0)
            raise found.report.refused.error
        return found

    def answer(self, engine: Engine, artifact: ArtifactId, tokens: Sequence[int], **options: Any) -> str:
        """Digest of what the victim gets to see after a graft."""
        found = self.graft(engine, artifact, tokens, **options)
        return said(engine, found.context, engine.extend(found.context, found.next_tokens, found.schedule))

    async def takes(self, story: Story, engine: Engine, tokens: Sequence[int] = DOCUMENT, **settings: Any) -> str:
        """Pull by id, graft, ask; whether the logits are those of a fresh computation."""
        artifact = story.artifact.id
        await self.pull(story, artifact, engine, settings=settings)
        self.begin()
        got = self.answer(engine, artifact, [*tokens, *QUESTION])
        return compared(got, self.engines.fresh(engine, tokens, QUESTION))

    # what may not change

    def begin(self) -> None:
        """What is here now must still be here, and nothing else, after a refusal."""
        self._before, self._false_before = self._state(), self._false_chunks()

    def untouched(self) -> bool:
        """Whether a refusal changed nothing; bad chunks may be set aside, and verified ones kept."""
        return self._before == self._state() and self._false_chunks() <= self._false_before

    def _state(self) -> object:
        store = self.victim.store
        artifacts = sorted((stored.artifact.hex, stored.envelope.encode()) for stored in store.artifacts())
        live = None if self.live is None else self.live[0].state_digest(self.live[1]).hex
        return artifacts, [ref.ref for ref in store.refs()], live

    def _false_chunks(self) -> set[str]:
        """Chunks here whose bytes are not those that their name says."""
        chunks = (self.victim.home.store_dir / "chunks").glob("*/*")
        return {path.name for path in chunks if sha256(path.read_bytes()).hex != path.name}


def compared(got: str, fresh: str) -> str:
    """What the victim got, measured by the fresh computation."""
    return RIGHT if got == fresh else WRONG


def continued(world: World, engine: Engine, artifact: ArtifactId) -> str:
    """Whether the victim, who goes on from what it takes for its document's artifact, gets the right logits."""
    tokens = world.victim.store.artifact(artifact).tokens()
    got = world.answer(engine, artifact, [*tokens, *QUESTION])
    return compared(got, world.engines.fresh(engine, DOCUMENT, QUESTION))


def named(artifact: ArtifactId, sequence: int, key: SigningKey = SIGNER, **members: Any) -> Envelope:
    """A signed ref of the name "doc"."""
    return Ref(members.pop("name", "doc"), artifact, sequence, **members).seal(key)
