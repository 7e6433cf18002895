"""What every engine can do, and nothing about how: the interface that graft, daemon and demo are written for.

Torch-free. An engine computes under the canonical schedule, hands out every block's state while it computes,
and puts verified state back, so that what follows is the same calls on the same inputs as a fresh run's.
Its canonical form of state is `[kv_heads, tokens, dim]` per layer, "key" and "value", and for recurrent layers their
named states at a block's end; an engine whose own memory looks different converts at this border. Layers are
numbered as in the artifact (SPEC 3.2).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvsync.pack import ArtifactReader
from kvsync.progress import Progress, silent
from kvsync_protocol.digest import Digest
from kvsync_protocol.fingerprint import Fingerprints
from kvsync_protocol.layout import AnyGroup, DType, Layout
from kvsync_protocol.schedule import Schedule


class BlockSink(Protocol):
    """Receives each block once, in order: `(layer, "key" | "value") -> [kv_heads, tokens, dim]` as bytes.

    States of recurrent layers, `(layer, name)`, come with every block, as they were at its end.
    A block comes as soon as its last token is computed; the last one may be partial. The bytes belong to the
    receiver: the engine never writes to them again. It may be called on another thread, one call at a time, while the
    next block is computed; `prefill` returns when the last call has.
    """

    def __call__(self, block: int, tensors: Mapping[tuple[int, str], memoryview]) -> None: ...


class Logits(Protocol):
    """Logits `[positions, vocab]` in the model's own dtype, in host memory."""

    @property
    def positions(self) -> int: ...
    @property
    def vocab(self) -> int: ...
    @property
    def dtype(self) -> DType: ...

    def buffer(self) -> memoryview:
        """All values as contiguous bytes."""

    def sha256(self) -> Digest:
        """Digest of `buffer()`."""

    def last(self) -> Logits:
        """The last position alone, `[1, vocab]`."""

    def tail(self, count: int) -> Logits:
        """The last `count` positions, `[count, vocab]`."""

    def argmax(self) -> list[int]:
        """The most likely token at each position; the lowest id among equals."""

    def draw(self, temperature: float, top_p: float, number: float) -> int:
        """A token at the last position, drawn by `number` in [0, 1): equal logits and numbers give equal tokens.

        In float64: softmax of the logits divided by `temperature` (above 0), tokens by falling probability, the lower
        id first among equals, as many of them as together reach `top_p`; of these the first at which the running
        sum exceeds `number` times their sum.
        """

    def at(self, position: int) -> Logits:
        """One position, `[1, vocab]`."""

    def max_abs(self, other: Logits) -> float:
        """The largest difference of two logits. Raises as `kl`."""

    def kl(self, other: Logits) -> float:
        """Mean over positions of KL(self ‖ other) in nats, in float64.

        Raises:
            EngineError: `engine.logits` when the shapes differ.
        """


class Context(Protocol):
    """A cache and its position. Belongs to the engine that made it."""

    @property
    def position(self) -> int:
        """Tokens in the cache. Raises EngineError `engine.context` after a failed call has left it half-written."""

    @property
    def cache(self) -> Any:
        """The engine's own cache object; a transformers `Cache` goes straight into `generate`."""

    @property
    def device(self) -> str:
        """Where the cache lives: "cpu", "cuda:0"."""

    def repeated(self, rows: int) -> Any:
        """A new cache with this state in each of `rows` rows, for batched calls of the model's own.

        The reference is a fresh run that repeats its state at the same position and makes the same calls.

        Raises:
            EngineError: `engine.batch`, `engine.context`.
        """

    def move_into(self, cache: Any) -> None:
        """Put the state into an empty cache that the caller has made; `cache` is the context's own from then on.

        Raises:
            EngineError: `engine.unsupported_cache` with the name of a class that cannot take it, `engine.context`.
        """


class Engine(Protocol):
    """One loaded model under one set of determinism settings. Safe to call from any thread, one call at a time.

    Every computing method raises EngineError: `engine.empty`, `engine.token`, `engine.too_long` before anything
    is computed, `engine.context` for a context of another engine or one that was moved by somebody else,
    `engine.weights_changed` when parameters were written in place, `engine.model_changed` when modules, hooks or
    settings of the model are others than when its fingerprint was taken.
    """

    @property
    def name(self) -> str: ...
    @property
    def fingerprints(self) -> Fingerprints: ...
    @property
    def schedule(self) -> Schedule:
        """The cuts at multiples of block_tokens, no boundaries."""

    @property
    def groups(self) -> tuple[AnyGroup, ...]: ...
    @property
    def dtype(self) -> DType:
        """Of weights, arithmetic and KV state."""

    @property
    def vocab(self) -> int:
        """Size of a logits row; every token id is below the size of the embedding, at most this."""

    @property
    def max_tokens(self) -> int:
        """The longest sequence the model has positions for."""

    @property
    def template(self) -> Digest | None:
        """SHA-256 of the chat template, None for a model without one."""

    @property
    def ends(self) -> frozenset[int]:
        """Tokens with which the model ends what it says."""

    def layout(self, tokens: int) -> Layout:
        """The geometry of an artifact of so many tokens. Raises EngineError `engine.empty`, `engine.too_long`."""

    def encode(self, text: str, *, continuation: bool = False) -> list[int]:
        """Token ids of a text; a continuation gets no leading special tokens."""

    def decode(self, tokens: Sequence[int]) -> str: ...

    def chat(self, turns: Sequence[str], *, reply: bool) -> str | None:
        """The user's turns and the model's, in turn, as the chat template writes them; None without a template.

        The text holds all special tokens that belong to it, so it is encoded as a continuation. With `reply` it ends
        where the model's next turn begins. Raises EngineError `engine.template` when the template refuses.
        """

    def new_context(self) -> Context:
        """An empty context."""

    def prefill(
        self,
        context: Context,
        tokens: Sequence[int],
        schedule: Schedule,
        *,
        sink: BlockSink | None = None,
        progress: Progress = silent,
    ) -> Logits:
        """Compute `tokens` behind what the context holds, one call per segment; logits of the last, `[1, vocab]`.

        With a sink, `progress` tells of the tokens whose blocks it has taken.

        Raises:
            EngineError: `engine.capture` when a sink is given and the start lies inside a block of which a
                sliding layer no longer holds the beginning.
        """

    def extend(self, context: Context, tokens: Sequence[int], schedule: Schedule) -> Logits:
        """Like `prefill`, with the logits of every new position, `[len(tokens), vocab]`."""

    def decode_greedy(self, context: Context, logits: Logits, steps: int) -> tuple[list[int], Logits]:
        """Take the most likely token `steps` times, each computed by a call of its own.

        Returns:
            The tokens, and the logits after each of them, `[steps, vocab]`.
        """

    def step_rows(self, cache: Any, tokens: Sequence[int]) -> Logits:
        """One more token in every row of `Context.repeated(len(tokens))`; the logits of row i at position i.

        Cheaper than as many calls of one row, and with other last bits than theirs: rows share one product.
        """

    def select_rows(self, cache: Any, rows: Sequence[int]) -> Any:
        """A new cache with only these rows of a batch. Raises EngineError `engine.batch` for none."""

    def one_shot(self, tokens: Sequence[int], *, keep: int = 1) -> Logits:
        """Logits of the last `keep` positions from one uncut call: another reference, equal only by luck."""

    def restore(self, reader: ArtifactReader, position: int) -> Context:
        """A new context that holds the first `position` tokens; built aside, so a failure leaves nothing.

        Raises:
            MismatchError: `mismatch.layout`, `mismatch.position`.
            IntegrityError: from the reader, before any byte is in use.
            EngineError: `engine.restore` when the finished cache is not what it must be.
        """

    def logits(self, reader: ArtifactReader) -> Logits:
        """An artifact's stored final logits, `[1, vocab]`. Raises as `restore`."""

    def state_digest(self, context: Context) -> Digest:
        """SHA-256 over position and every byte of the live cache, read back from its device."""

    def verify_weights(self) -> None:
        """Hash the weights in memory again. Raises EngineError `engine.weights_changed`."""
