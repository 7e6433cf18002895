"""The same question after the same document: once computed afresh, once on a graft."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from kvsync.config import Home, Settings
from kvsync.engines.engine import Engine, Logits
from kvsync.errors import EngineError
from kvsync.graft import graft
from kvsync.keys import NodeKeys, TrustList
from kvsync.store import Store

DECODE_STEPS = 32


def prompt(engine: Engine, params: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Token ids of the document and of the question that follows it."""
    document = Path(params["document"]).read_bytes().decode()
    return engine.encode(document), engine.encode(params["question"], continuation=True)


def _warm_up(engine: Engine, tokens: list[int]) -> None:
    """Both sides are timed with the model's pages and thread pools warm."""
    engine.prefill(engine.new_context(), tokens[:16], engine.schedule)


def continue_fresh(engine: Engine, params: dict[str, Any]) -> dict[str, object]:
    """The canonical fresh computation, and a one-shot prefill as the other reference."""
    document, question = prompt(engine, params)
    schedule = engine.schedule.with_boundary(len(document))
    _warm_up(engine, document)
    started = time.perf_counter()
    context = engine.new_context()
    engine.prefill(context, document, schedule)
    logits = engine.extend(context, question, schedule)
    first = logits.argmax()[-1]
    ttft = time.perf_counter() - started
    ids, decoded = engine.decode_greedy(context, logits, DECODE_STEPS)
    one_shot = engine.one_shot([*document, *question], keep=len(question))
    return {
        "ttft": ttft,
        "first": first,
        "logits": logits.sha256().hex,
        "decode": decoded.sha256().hex,
        "answer": engine.decode(ids),
        "one_shot": _compare(logits, one_shot),
    }


def _compare(canonical: Logits, one_shot: Logits) -> dict[str, object]:
    return {"kl": canonical.kl(one_shot), "argmax_equal": canonical.argmax() == one_shot.argmax()}


def continue_graft(engine: Engine, params: dict[str, Any]) -> dict[str, object]:
    """The graft of what this node pulled, every check on, then the same calls."""
    document, question = prompt(engine, params)
    home: Home = params["home"]
    keys = NodeKeys.load(home)
    trusted = TrustList(home, keys.signer.public).keys()
    _warm_up(engine, document)
    with Store.open(home.store_dir) as store:
        started = time.perf_counter()
        accept = Settings.load(home).accept
        grafted = graft(store, trusted, engine, [*document, *question], accept=accept, advance=False)
        if grafted.report.refused is not None:
            refused = grafted.report.refused
            raise EngineError(refused.code, refused.message, hint=refused.hint)
        logits = engine.extend(grafted.context, grafted.next_tokens, grafted.schedule)
        first = logits.argmax()[-1]
        ttft = time.perf_counter() - started
        ids, decoded = engine.decode_greedy(grafted.context, logits, DECODE_STEPS)
    return {
        "ttft": ttft,
        "first": first,
        "logits": logits.sha256().hex,
        "decode": decoded.sha256().hex,
        "answer": engine.decode(ids),
        "document_tokens": len(document),
        "question_tokens": len(question),
        "report": grafted.report.as_dict(),
    }
