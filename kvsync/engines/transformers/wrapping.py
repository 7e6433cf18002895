"""A transformers model that somebody else has loaded, as an engine: made once per model object."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

from transformers import PreTrainedModel

from kvsync.engines.transformers.adapters import adapters_text, base_of
from kvsync.engines.transformers.assembly import assemble
from kvsync.engines.transformers.compatibility import TOKENIZER_FILES
from kvsync.engines.transformers.determinism import Determinism
from kvsync.engines.transformers.dtypes import from_torch
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.engines.transformers.layers import new_cache
from kvsync.engines.transformers.loader import load_tokenizer
from kvsync.engines.transformers.quiet import quiet_and_offline
from kvsync.engines.transformers.support import check_attention, check_config
from kvsync.engines.transformers.weights import own, weights_digest
from kvsync.errors import EngineError
from kvsync_protocol.limits import BLOCK_TOKENS, SNAPSHOT_BLOCKS

_ENGINES: Final = "_kvsync_engines"
_MAKING: Final = threading.RLock()
"""Two engines for one model, made by two threads at once, would each lock only themselves."""


class _Engines(dict[tuple[int, int, int, int], TransformersEngine]):
    """The engines of one model object, kept on it so that they go when it goes; a copied model starts with none."""

    def __deepcopy__(self, memo: object) -> _Engines:
        return _Engines()

    def __reduce__(self) -> tuple[type[_Engines], tuple[()]]:
        return _Engines, ()


def wrap(
    model: Any,
    *,
    threads: int = 0,
    tokenizer: Any = None,
    block_tokens: int = BLOCK_TOKENS,
    snapshot_blocks: int = SNAPSHOT_BLOCKS,
) -> TransformersEngine:
    """See `kvsync.engines.as_engine`. From any thread; engines are made one after the other."""
    with _MAKING:
        return _wrap(model, threads, tokenizer, block_tokens, snapshot_blocks)


def _wrap(given: Any, threads: int, tokenizer: Any, block_tokens: int, snapshot_blocks: int) -> TransformersEngine:
    model = base_of(given)
    if not isinstance(model, PreTrainedModel):
        raise EngineError(
            "engine.unsupported_model",
            f"{type(model).__name__} is neither an engine nor a transformers model",
            hint="pass a model as AutoModelForCausalLM.from_pretrained returns it",
        )
    engines: _Engines = model.__dict__.setdefault(_ENGINES, _Engines())
    # An engine keeps its tokenizer alive, so the id stays its own.
    key = (threads, block_tokens, snapshot_blocks, id(tokenizer))
    known = engines.get(key)
    if known is not None and known.unchanged:
        return known
    places = {parameter.device for parameter in model.parameters()}
    if len(places) != 1 or next(iter(places)).type not in ("cpu", "cuda"):
        raise EngineError("engine.device", "the model does not lie on one CPU or CUDA device as a whole")
    if any(module.training for module in model.modules()):
        raise EngineError("engine.training", "the model is in training mode", hint="call model.eval()")
    adapters_text(model)
    attention = str(getattr(model.config, "_attn_implementation", "sdpa"))
    check_attention(attention)
    check_config(model.config)
    new_cache(model.config)
    kind = from_torch(next(model.parameters()).dtype)
    determinism = Determinism.choose(threads, next(iter(places)))
    with determinism.running(), quiet_and_offline():
        own(model, all_of_them=False)
        folder = _tokenizer_folder(model if tokenizer is None else tokenizer)
        if tokenizer is None and folder is not None:
            tokenizer = load_tokenizer(folder)
        weights = weights_digest(model)
        engine = assemble(
            model,
            tokenizer,
            folder,
            weights,
            determinism,
            attention,
            kind,
            block_tokens,
            snapshot_blocks,
            remember=False,
        )
    engines[key] = engine
    return engine


def _tokenizer_folder(source: Any) -> Path | None:
    """The local directory a model or tokenizer says it came from, when it has tokenizer files."""
    name = str(getattr(source, "name_or_path", "") or "")
    found = bool(name) and any((Path(name) / file).is_file() for file in TOKENIZER_FILES)
    return Path(name) if found else None
