"""Blocks are delivered while the next one is computed: in order, boundedly, and whatever ends it."""

from __future__ import annotations

import threading

import pytest

from kvsync.engines.delivery import WAITING, Delivery
from kvsync.errors import StoreError
from tests.engines.test_capture import BLOCK, collect, some_tokens

PATIENCE_S = 30.0
"""Only a broken delivery waits so long."""


def block(number: int):
    data = bytes([number])
    return lambda: {(0, "key"): memoryview(data)}


def deliver(sink, count, end=None):
    with Delivery(sink) as delivery:
        for number in range(count):
            delivery.put(number, number + 1, block(number))
        if end is not None:
            raise end


def test_blocks_come_in_order_on_one_other_thread_each_once():
    seen, threads = [], set()

    def sink(number, tensors):
        threads.add(threading.current_thread())
        seen.append((number, bytes(tensors[0, "key"])))

    with Delivery(sink) as delivery:
        for number in range(20):
            delivery.put(number, number + 1, block(number))
    assert seen == [(number, bytes([number])) for number in range(20)]
    assert len(threads) == 1
    assert threading.current_thread() not in threads
    assert not threads.pop().is_alive()


def test_a_computation_waits_while_too_much_waits_for_the_sink():
    gate, handed = threading.Event(), []

    def sink(number, tensors):
        assert gate.wait(PATIENCE_S)

    def compute():
        with Delivery(sink) as delivery:
            for number in range(5):
                delivery.put(number, number + 1, block(number))
                handed.append(number)

    computing = threading.Thread(target=compute)
    computing.start()
    computing.join(0.3)
    assert computing.is_alive()
    assert len(handed) <= WAITING
    gate.set()
    computing.join(PATIENCE_S)
    assert handed == list(range(5))


@pytest.mark.parametrize("failing", [0, 1, 4])
def test_what_the_sink_raises_ends_the_computation_as_it_is_and_nothing_comes_after(failing):
    error, seen = StoreError("store.full", "no space left"), []

    def sink(number, tensors):
        seen.append(number)
        if number == failing:
            raise error

    with pytest.raises(StoreError) as raised:
        deliver(sink, 5)
    assert raised.value is error
    assert seen == list(range(failing + 1))


def test_what_was_computed_before_a_cancel_is_delivered():
    seen = []
    with pytest.raises(KeyboardInterrupt):
        deliver(lambda number, tensors: seen.append(number), 3, KeyboardInterrupt())
    assert seen == [0, 1, 2]


def test_a_delivery_of_nothing_starts_no_thread():
    before = threading.active_count()
    with Delivery(lambda number, tensors: None):
        assert threading.active_count() == before


def test_the_engine_computes_the_next_block_while_the_sink_has_the_last(llama):
    """The sink lets go of block 0 only after block 1 is computed."""
    second, seen, calls = threading.Event(), [], []

    def sink(number, tensors):
        if number == 0:
            seen.append(second.wait(PATIENCE_S))
        seen.append({place: bytes(data) for place, data in tensors.items()})

    def progress(stage, done, total, unit):
        calls.append(done)
        if len(calls) == 2:
            second.set()

    tokens = some_tokens(4 * BLOCK)
    llama.prefill(llama.new_context(), tokens, llama.schedule, sink=sink, progress=progress)
    assert seen[0] is True
    assert calls[:2] == [0, 0]  # nothing is told of what the sink does not have
    assert calls[-1] == len(tokens)
    plain = collect(llama, tokens)
    assert seen[1:] == [{place: bytes(data) for place, data in tensors.items()} for _, tensors in plain.blocks]


def test_what_the_sink_raises_ends_a_prefill_within_a_few_blocks(llama):
    error, computed = StoreError("store.full", "no space left"), []

    def sink(number, tensors):
        raise error

    def progress(stage, done, total, unit):
        computed.append(done)

    with pytest.raises(StoreError) as raised:
        llama.prefill(llama.new_context(), some_tokens(9 * BLOCK), llama.schedule, sink=sink, progress=progress)
    assert raised.value is error
    assert len(computed) <= WAITING + 1
