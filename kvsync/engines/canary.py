"""The canary: what this very model on this very stack really computes, as one digest.

Version strings describe a stack, the canary tests it. Its sequence crosses a block cut and ends with single
steps, so that every shape of call that a graft makes has its part in the digest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from typing import Final

from kvsync.engines.engine import Engine
from kvsync.engines.memo import DigestMemo
from kvsync_protocol.digest import Digest

TAG: Final = "kvsync/canary/1"
TAIL_TOKENS: Final = 44
DECODE_STEPS: Final = 3


def canary_tokens(count: int, vocab: int) -> list[int]:
    """A fixed sequence, the same on every host: token i from SHA-256 of i."""
    draws = (hashlib.sha256(f"{TAG}/{index}".encode()).digest() for index in range(count))
    return [int.from_bytes(draw[:8], "big") % vocab for draw in draws]


def run_canary(engine: Engine, vocab: int) -> Digest:
    """Compute the sequence; digest of all KV bytes and logits. Leaves no state."""
    count = max(1, min(engine.schedule.block_tokens + TAIL_TOKENS, engine.max_tokens - DECODE_STEPS))
    state = hashlib.sha256(f"{TAG} {count}".encode())

    def sink(block: int, tensors: Mapping[tuple[int, str], memoryview]) -> None:
        for (layer, part), data in sorted(tensors.items()):
            name = part.encode().ljust(5, b"\0")
            state.update(struct.pack(f">II{len(name)}sQ", block, layer, name, data.nbytes))
            state.update(data)

    context = engine.new_context()
    logits = engine.prefill(context, canary_tokens(count, vocab), engine.schedule, sink=sink)
    state.update(logits.buffer())
    _, steps = engine.decode_greedy(context, logits, min(DECODE_STEPS, engine.max_tokens - count))
    state.update(steps.buffer())
    state.update(engine.state_digest(context).raw)
    return Digest(state.digest())


def cached_canary(engine: Engine, vocab: int, key: Mapping[str, str]) -> Digest:
    """`run_canary`, remembered under everything that could change it; `key` names all of that."""
    memo = DigestMemo("canary")
    full_key = {**key, "tag": TAG}
    found = memo.get(full_key)
    if found is None:
        found = run_canary(engine, vocab)
        memo.put(full_key, found)
    return found
