"""Blocks as the engine hands them out: each once, in order, complete, and never touched again."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from kvsync.engines import Engine
from kvsync.engines.transformers.engine import TransformersEngine
from kvsync.errors import EngineError
from kvsync_protocol.digest import sha256
from tests.engines.tiny_models import BLOCK, Models, some_tokens

Tensors = Mapping[tuple[int, str], memoryview]


class Collector:
    """A BlockSink that keeps what it got."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, Tensors]] = []

    def __call__(self, block: int, tensors: Tensors) -> None:
        self.blocks.append((block, tensors))

    @property
    def numbers(self) -> list[int]:
        return [block for block, _ in self.blocks]

    def digests(self) -> list[dict[tuple[int, str], str]]:
        return [{slot: sha256(data).hex for slot, data in tensors.items()} for _, tensors in self.blocks]


def collect(engine: Engine, tokens: list[int], *boundaries: int) -> Collector:
    schedule = engine.schedule
    for place in boundaries:
        schedule = schedule.with_boundary(place)
    sink = Collector()
    engine.prefill(engine.new_context(), tokens, schedule, sink=sink)
    return sink


@pytest.mark.parametrize("count", [1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 9])
def test_every_block_comes_once_in_order_with_the_sizes_of_the_layout(count: int, sliding: Engine) -> None:
    sink = collect(sliding, some_tokens(count))
    layout = sliding.layout(count)
    assert sink.numbers == list(range(layout.blocks))
    for block, tensors in sink.blocks:
        expected = {
            (span.layer, span.part): span.size for g in layout.groups for span in layout.file(block, g.name).tensors
        }
        assert {slot: data.nbytes for slot, data in tensors.items()} == expected


def test_blocks_hold_what_a_full_layer_holds(llama: TransformersEngine) -> None:
    tokens, sink = some_tokens(2 * BLOCK + 5), Collector()
    context = llama.new_context()
    llama.prefill(context, tokens, llama.schedule, sink=sink)
    for index, layer in enumerate(context.cache.layers):
        for block, tensors in sink.blocks:
            part = layer.keys[0, :, block * BLOCK : (block + 1) * BLOCK].contiguous()
            assert bytes(tensors[index, "key"]) == part.view(torch.uint8).numpy().tobytes()


def test_a_cut_inside_a_block_does_not_split_the_block(llama: Engine) -> None:
    tokens = some_tokens(2 * BLOCK)
    assert collect(llama, tokens, 10, BLOCK + 3, BLOCK + 4).numbers == [0, 1]


def test_capturing_changes_nothing(sliding: Engine) -> None:
    tokens = some_tokens(2 * BLOCK + 9)
    plain, captured = sliding.new_context(), sliding.new_context()
    without = sliding.prefill(plain, tokens, sliding.schedule)
    with_sink = sliding.prefill(captured, tokens, sliding.schedule, sink=Collector())
    assert with_sink.sha256() == without.sha256()
    assert sliding.state_digest(captured) == sliding.state_digest(plain)


def test_handed_out_bytes_stay_as_they_are(sliding: Engine) -> None:
    tokens, sink, seen = some_tokens(4 * BLOCK), Collector(), []

    def watching(block: int, tensors: Tensors) -> None:
        sink(block, tensors)
        seen.append({slot: sha256(data).hex for slot, data in tensors.items()})

    context = sliding.new_context()
    logits = sliding.prefill(context, tokens, sliding.schedule, sink=watching)
    sliding.decode_greedy(context, logits, 4)
    assert sink.digests() == seen


def test_a_prefill_in_two_parts_hands_out_the_same_blocks(llama: Engine) -> None:
    tokens = some_tokens(3 * BLOCK + 7)
    schedule = llama.schedule.with_boundary(BLOCK + 20)
    whole = Collector()
    llama.prefill(llama.new_context(), tokens, schedule, sink=whole)
    context, first, second = llama.new_context(), Collector(), Collector()
    llama.prefill(context, tokens[: BLOCK + 20], schedule, sink=first)
    llama.prefill(context, tokens[BLOCK + 20 :], schedule, sink=second)
    assert first.numbers == [0, 1]
    assert second.numbers == [1, 2, 3]
    assert first.digests()[:1] + second.digests() == whole.digests()


def test_a_start_inside_a_block_that_a_window_has_left_is_refused(sliding: Engine) -> None:
    context = sliding.new_context()
    tokens = some_tokens(BLOCK)
    sliding.prefill(context, tokens[:50], sliding.schedule.with_boundary(50))
    with pytest.raises(EngineError) as caught:
        sliding.prefill(context, tokens[50:], sliding.schedule, sink=Collector())
    assert caught.value.code == "engine.capture"


def test_a_failing_sink_leaves_a_context_that_says_so(llama: Engine) -> None:
    class FullDiskError(Exception):
        pass

    def failing(block: int, tensors: Tensors) -> None:
        if block == 1:
            raise FullDiskError

    context = llama.new_context()
    with pytest.raises(FullDiskError):
        llama.prefill(context, some_tokens(3 * BLOCK), llama.schedule, sink=failing)
    with pytest.raises(EngineError) as caught:
        llama.extend(context, [1], llama.schedule)
    assert caught.value.code == "engine.context"


def test_progress_counts_tokens_up_to_the_last(llama: Engine) -> None:
    seen: list[tuple[str, int, int, str]] = []
    llama.prefill(
        llama.new_context(), some_tokens(BLOCK + 5), llama.schedule, progress=lambda *step: seen.append(step)
    )
    assert seen == [("prefill", BLOCK, BLOCK + 5, "tokens"), ("prefill", BLOCK + 5, BLOCK + 5, "tokens")]


def test_only_about_one_block_is_held_at_a_time(tiny: Models) -> None:
    """What was handed out and dropped is free again while later blocks are computed."""
    import weakref

    engine = tiny.engine("llama")
    alive: list[weakref.ref[object]] = []
    most = 0

    def sink(block: int, tensors: Tensors) -> None:
        nonlocal most
        alive.extend(weakref.ref(data.obj) for data in tensors.values())
        most = max(most, sum(ref() is not None for ref in alive))

    engine.prefill(engine.new_context(), some_tokens(6 * BLOCK), engine.schedule, sink=sink)
    assert len(alive) == 6 * 8
    assert most <= 8
