"""Token buckets: never more than rate · t + burst, whatever is asked and however the rate changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvsync.peer.bucket import LEAST_BURST, TokenBucket
from kvsync_protocol.limits import MiB

RATES = st.integers(1, 2**34)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@given(RATES, st.lists(st.tuples(st.floats(0, 3), st.integers(1, LEAST_BURST)), max_size=60))
def test_no_span_of_time_sees_more_than_its_rate_and_one_burst(rate: int, steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, clock)
    passed: list[tuple[float, int]] = []
    for pause, size in steps:
        clock.now += pause
        if bucket.take(size) == 0.0:
            passed.append((clock.now, size))
    for first in range(len(passed)):
        moved = 0
        for last in range(first, len(passed)):
            moved += passed[last][1]
            span = passed[last][0] - passed[first][0]
            assert moved <= rate * span + bucket.burst + 1


@given(RATES, st.lists(st.integers(1, LEAST_BURST), min_size=1, max_size=40))
def test_whoever_waits_as_long_as_told_gets_through(rate: int, sizes: list[int]) -> None:
    clock = Clock()
    bucket = TokenBucket(rate, clock)
    for size in sizes:
        for _ in range(4):  # rounding may leave a last fraction of a byte
            pause = bucket.take(size)
            if not pause:
                break
            assert pause <= size / rate + 1e-6
            clock.now += pause + 1e-9
        assert pause == 0.0
    assert clock.now >= (sum(sizes) - bucket.burst) / rate - 1e-6


@given(st.lists(st.tuples(st.one_of(st.just(0), RATES), st.floats(0, 1), st.integers(1, LEAST_BURST)), max_size=60))
def test_while_the_rate_changes_no_more_passes_than_the_rates_of_the_time_and_the_largest_burst(
    steps: list[tuple[int, float, int]],
) -> None:
    clock = Clock()
    bucket = TokenBucket(1, clock)
    allowed, passed, largest = 0.0, 0, bucket.burst
    for rate, pause, size in steps:
        bucket.set_rate(rate)
        largest = max(largest, bucket.burst)
        clock.now += pause
        allowed += rate * pause
        taken = bucket.take(size) == 0.0
        if not rate:
            assert taken
        elif taken:
            passed += size
            assert passed <= allowed + largest + 1


def test_what_is_given_back_may_pass_again() -> None:
    clock = Clock()
    bucket = TokenBucket(MiB, clock)
    assert bucket.take(bucket.burst) == 0.0
    assert bucket.take(1) > 0.0
    bucket.give_back(1)
    assert bucket.take(1) == 0.0
