"""The same tokens as a plain prompt: what a grafted attempt would have decoded with everything computed afresh."""

from __future__ import annotations

from kvsync.engines.engine import Engine
from kvsync.errors import EngineError
from kvsync.library.decoding import decode
from kvsync.library.library import Library
from kvsync.library.recipe import Recipe
from kvsync.library.report import Attempt
from kvsync.library.wording import Wording
from kvsync_protocol.digest import Digest
from kvsync_protocol.prefix import tokens_digest


def plain_tokens(library: Library, engine: Engine, recipe: Recipe, problem: str, grafted: Attempt) -> Digest:
    """Digest of the tokens decoded behind the attempt's prompt, computed from an empty context.

    Raises:
        EngineError: `eval.prompt` when the prompt cannot be made again from the entry.
        NotFoundError: `library.unknown_entry`, `store.unknown_artifact` when the entry went away meanwhile.
    """
    if grafted.entry is None or grafted.prompt is None:
        raise EngineError("eval.prompt", "the attempt has grafted nothing")
    entry, wording = library.store.read(grafted.entry).entry, Wording(engine)
    held = library.client.store.artifact(entry.artifact).tokens()
    tokens = [*held, *wording.follow(entry.problem, entry.solution, problem)]
    if tokens_digest(tokens) != grafted.prompt:
        raise EngineError("eval.prompt", "the entry gives another prompt than the attempt had")
    schedule = engine.schedule.with_boundary(len(held))
    context = engine.new_context()
    logits = engine.prefill(context, tokens, schedule)
    stops = (*wording.stops, *recipe.stops)
    return tokens_digest(decode(engine, context, logits, schedule, grafted.cost.decoded, stops=stops).tokens)
