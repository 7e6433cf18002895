"""A transformers model as an `Engine`. Every computation is made of the same calls, fresh or grafted."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from kvsync.engines.canary import cached_canary, run_canary
from kvsync.engines.delivery import Delivery
from kvsync.engines.engine import BlockSink, Context, Logits
from kvsync.engines.transformers import recurrent
from kvsync.engines.transformers.batch import selected
from kvsync.engines.transformers.capture import BlockAssembler, CapturingCache
from kvsync.engines.transformers.context import TransformersContext
from kvsync.engines.transformers.determinism import Determinism
from kvsync.engines.transformers.dialogue import chat_text, end_tokens
from kvsync.engines.transformers.dtypes import TO_TORCH, as_bytes
from kvsync.engines.transformers.forward import Forward
from kvsync.engines.transformers.layers import new_cache
from kvsync.engines.transformers.logits import TensorLogits
from kvsync.engines.transformers.numerics import host_name
from kvsync.engines.transformers.probe import ModelShape
from kvsync.engines.transformers.restore import restore_cache
from kvsync.engines.transformers.watch import ModelWatch
from kvsync.errors import EngineError
from kvsync.pack import ArtifactReader
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import Digest
from kvsync_protocol.errors import MismatchError
from kvsync_protocol.fingerprint import CANARY_FIELD, Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.layout import AnyGroup, DType, Layout
from kvsync_protocol.schedule import Schedule

NAME: Final = "transformers"


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that passed every check, and what is known of it."""

    forward: Forward
    config: Any
    tokenizer: Any
    shape: ModelShape
    determinism: Determinism
    watch: ModelWatch
    dtype: DType
    max_tokens: int
    token_limit: int
    """Rows of the embedding."""
    template: Digest | None
    weights: Digest
    adapters: str
    hash_weights: Callable[[], Digest]
    read_adapters: Callable[[], str]


class TransformersEngine:
    """See `kvsync.engines.engine.Engine`.

    Args:
        numerics: all fields but the canary, which is computed here, or remembered.
        remember: whether a canary of the same model may be taken from the cache.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        schedule: Schedule,
        compatibility: Fingerprint,
        numerics: dict[str, str],
        *,
        remember: bool,
    ) -> None:
        self._loaded = loaded
        self._forward = loaded.forward
        self._lock = threading.RLock()
        self.name = NAME
        self.schedule = schedule
        self.groups: tuple[AnyGroup, ...] = loaded.shape.groups
        self.dtype = loaded.dtype
        self.vocab = loaded.shape.vocab
        self.max_tokens = loaded.max_tokens
        self.template = loaded.template
        self.ends = end_tokens(loaded.forward.model, loaded.tokenizer)
        limit = min(loaded.token_limit, self.vocab)
        key = {
            **numerics,
            "compatibility": str(compatibility.digest),
            "host": host_name(),
            "probe": str(loaded.shape.digest),
        }
        canary = cached_canary(self, limit, key) if remember else run_canary(self, limit)
        self.fingerprints = Fingerprints(
            compatibility, Fingerprint(FingerprintKind.NUMERICS, {**numerics, CANARY_FIELD: str(canary)})
        )

    @property
    def model(self) -> Any:
        """The transformers model itself."""
        return self._forward.model

    @property
    def unchanged(self) -> bool:
        """Whether the model is still the one that the fingerprint names, as far as can be seen cheaply."""
        return self._loaded.watch.unchanged

    def layout(self, tokens: int) -> Layout:
        self._check_length(tokens)
        return Layout(tokens, self.schedule.block_tokens, self.groups, self.vocab, self._loaded.shape.logits_dtype)

    def encode(self, text: str, *, continuation: bool = False) -> list[int]:
        tokens = self._tokenizer()(text, add_special_tokens=not continuation, verbose=False)["input_ids"]
        return [int(token) for token in tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._tokenizer().decode(list(tokens)))

    def chat(self, turns: Sequence[str], *, reply: bool) -> str | None:
        return None if self.template is None else chat_text(self._tokenizer(), turns, reply=reply)

    def _tokenizer(self) -> Any:
        if self._loaded.tokenizer is None:
            raise EngineError("engine.no_tokenizer", "this model was given without a tokenizer")
        return self._loaded.tokenizer

    def new_context(self) -> Context:
        with self._loaded.determinism.running():
            return TransformersContext(self, new_cache(self._loaded.config), 0, self._forward.device)

    def prefill(
        self,
        context: Context,
        tokens: Sequence[int],
        schedule: Schedule,
        *,
        sink: BlockSink | None = None,
        progress: Progress = silent,
    ) -> Logits:
        with self._running(context, tokens, schedule) as (cache, start):
            if sink is None:
                return self._segments(cache, start, tokens, schedule, None, progress)
            with Delivery(sink) as delivery:
                logits = self._segments(cache, start, tokens, schedule, delivery, progress)
            progress("prefill", len(tokens), len(tokens), "tokens")
            return logits

    def _segments(
        self,
        cache: Any,
        start: int,
        tokens: Sequence[int],
        schedule: Schedule,
        delivery: Delivery | None,
        progress: Progress,
    ) -> Logits:
        stop, assembler, target = start + len(tokens), None, cache
        if delivery is not None:
            assembler = BlockAssembler(self._loaded.shape.slots, schedule.block_tokens, start, cache, delivery)
            target = CapturingCache(cache, assembler.record)
        last = torch.empty(0, device="cpu")
        for begin, end in schedule.segments(start, stop):
            last = self._forward(target, tokens[begin - start : end - start], keep=1)
            done = end
            if delivery is not None and assembler is not None:
                assembler.advance(end, final=end == stop)
                done = max(start, delivery.reached)
            progress("prefill", done - start, len(tokens), "tokens")
        return TensorLogits(last.cpu().contiguous())

    def extend(self, context: Context, tokens: Sequence[int], schedule: Schedule) -> Logits:
        with self._running(context, tokens, schedule) as (cache, start):
            found = self._room(len(tokens))
            for begin, end in schedule.segments(start, start + len(tokens)):
                part = self._forward(cache, tokens[begin - start : end - start], keep=0)
                found[begin - start : end - start].copy_(part)
            return TensorLogits(found)

    def decode_greedy(self, context: Context, logits: Logits, steps: int) -> tuple[list[int], Logits]:
        if steps < 1:
            raise EngineError("engine.empty", "decoding takes at least one step")
        token = logits.last().argmax()[0]
        chosen: list[int] = []
        with self._running(context, [token] * steps, self.schedule) as (cache, _):
            found = self._room(steps)
            for step in range(steps):
                chosen.append(token)
                found[step].copy_(self._forward(cache, [token], keep=1)[0])
                token = int(found[step].argmax())
            return chosen, TensorLogits(found)

    def step_rows(self, cache: Any, tokens: Sequence[int]) -> Logits:
        with self._lock:
            self._check_tokens(tokens)
            self._check_length(cache.get_seq_length() + 1)
            self._loaded.watch.check()
            with self._loaded.determinism.running():
                return TensorLogits(self._forward.rows(cache, tokens).cpu().contiguous())

    def select_rows(self, cache: Any, rows: Sequence[int]) -> Any:
        with self._lock, self._loaded.determinism.running():
            return selected(cache, rows)

    def one_shot(self, tokens: Sequence[int], *, keep: int = 1) -> Logits:
        context = self.new_context()
        with self._running(context, tokens, self.schedule) as (cache, _):
            return TensorLogits(self._forward(cache, tokens, keep=keep).cpu().contiguous())

    def restore(self, reader: ArtifactReader, position: int) -> Context:
        self._check_length(position)
        with self._lock, self._loaded.determinism.running():
            self._loaded.watch.check()
            cache = restore_cache(self._loaded.config, self._loaded.shape, reader, position, self._forward.device)
            return TransformersContext(self, cache, position, self._forward.device)

    def logits(self, reader: ArtifactReader) -> Logits:
        layout = reader.layout
        if (layout.vocab, layout.logits_dtype) != (self.vocab, self._loaded.shape.logits_dtype):
            raise MismatchError("mismatch.layout", "the artifact's logits are not laid out like this model's")
        return TensorLogits.of_bytes(reader.logits(), layout.logits_dtype)

    def state_digest(self, context: Context) -> Digest:
        with self._lock:
            cache = self._own(context).cache
            state = hashlib.sha256(f"kvsync/state/1 {context.position}".encode())
            for layer in cache.layers:
                keys = getattr(layer, "keys", None), getattr(layer, "values", None)
                for tensor in (*keys, *(tensor for _, tensor in recurrent.parts_of(layer))):
                    if tensor is not None:
                        state.update(as_bytes(tensor.detach().cpu().contiguous()))
            return Digest(state.digest())

    def verify_weights(self) -> None:
        with self._lock:
            found, adapters = self._loaded.hash_weights(), self._loaded.read_adapters()
        if (found, adapters) != (self._loaded.weights, self._loaded.adapters):
            raise EngineError(
                "engine.weights_changed",
                "the weights in memory are not those that the fingerprint names",
                hint="load the model again",
                expected=str(self._loaded.weights),
                found=str(found),
            )

    @contextmanager
    def _running(self, context: Context, tokens: Sequence[int], schedule: Schedule) -> Iterator[tuple[Any, int]]:
        """Everything checked before the first call; cache and position inside; the position moved behind."""
        if schedule.block_tokens != self.schedule.block_tokens:
            raise EngineError("engine.schedule", f"this engine cuts every {self.schedule.block_tokens} tokens")
        own = self._own(context)
        with self._lock:
            own.check(self)
            self._check_tokens(tokens)
            self._check_length(own.position + len(tokens))
            self._loaded.watch.check()
            with self._loaded.determinism.running(), own.moving(len(tokens)) as start:
                yield own.cache, start

    def _own(self, context: Context) -> TransformersContext:
        if not isinstance(context, TransformersContext):
            raise EngineError("engine.context", "this context belongs to another engine")
        return context

    def _room(self, positions: int) -> torch.Tensor:
        """Host memory for logits, `[positions, vocab]`."""
        return torch.empty((positions, self.vocab), dtype=TO_TORCH[self._loaded.shape.logits_dtype], device="cpu")

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise EngineError("engine.empty", "there are no tokens to compute")
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self._loaded.token_limit:
            raise EngineError(
                "engine.token",
                f"token id {low if low < 0 else high} is not in the model's vocabulary",
                hint="were the tokens made by this model's tokenizer?",
                limit=self._loaded.token_limit,
            )

    def _check_length(self, tokens: int) -> None:
        if tokens < 1:
            raise EngineError("engine.empty", "there are no tokens to compute")
        if tokens > self.max_tokens:
            raise EngineError(
                "engine.too_long",
                f"{tokens} tokens are more than the {self.max_tokens} that this model has positions for",
                hint="split the document",
                tokens=tokens,
                limit=self.max_tokens,
            )
