"""The choice of an encoding: fixed by the settings, or by what chunks have been seen to cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from kvsync.sync.choice import PATIENCE, RETRY_EVERY, EncodingChoice, StreamEncoder
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.limits import MiB

SIZE = 4 * MiB


def run(choice: EncodingChoice, seconds: Callable[[Encoding], float], chunks: int) -> Counter[Encoding]:
    """Move `chunks` chunks that cost what `seconds` says; what they went as."""
    used: Counter[Encoding] = Counter()
    for _ in range(chunks):
        way = choice.take()
        used[way] += 1
        choice.learn(way, SIZE, seconds(way))
    return used


def slow_link(way: Encoding) -> float:
    return 0.035 if way is Encoding.IDENTITY else 0.024


def fast_link(way: Encoding) -> float:
    return 0.008 if way is Encoding.IDENTITY else 0.015


@pytest.mark.parametrize("way", [Encoding.IDENTITY, Encoding.ZSTD, Encoding.PLANES])
def test_a_fixed_setting_never_changes(way: Encoding) -> None:
    choice = EncodingChoice(way.name.lower())
    assert run(choice, fast_link, 50) == run(choice, slow_link, 50) == Counter({way: 50})


def test_auto_settles_on_what_moves_content_faster() -> None:
    assert run(EncodingChoice("auto"), slow_link, 96)[Encoding.PLANES] >= 90
    assert run(EncodingChoice("auto"), fast_link, 96)[Encoding.IDENTITY] >= 90


def test_auto_notices_that_the_link_has_changed() -> None:
    choice = EncodingChoice("auto")
    run(choice, fast_link, 100)
    run(choice, slow_link, 2 * RETRY_EVERY)
    assert run(choice, slow_link, 48)[Encoding.PLANES] >= 45
    run(choice, fast_link, 2 * RETRY_EVERY)
    assert run(choice, fast_link, 48)[Encoding.IDENTITY] >= 45


def test_streams_that_begin_at_once_go_plain_and_try_planes_one_at_a_time() -> None:
    choice = EncodingChoice("auto")
    assert {choice.take() for _ in range(16)} == {Encoding.IDENTITY}
    choice.learn(Encoding.IDENTITY, SIZE, 0.03)
    tries = [choice.take() for _ in range(2 * PATIENCE)]
    assert [way is Encoding.PLANES for way in tries] == [number % PATIENCE == 0 for number in range(2 * PATIENCE)]


def test_small_chunks_teach_nothing() -> None:
    choice = EncodingChoice("auto")
    for _ in range(10):
        choice.learn(Encoding.PLANES, 1000, 1e-9)
    assert run(choice, fast_link, 48)[Encoding.IDENTITY] >= 45


def test_a_stream_knows_the_shape_only_of_what_it_asked_for_in_planes() -> None:
    layout = Layout(8, 4, (Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.BF16),), 9, DType.F32)
    plain, planes = (StreamEncoder(EncodingChoice(setting), layout) for setting in ("identity", "planes"))
    assert (plain.choose(0), planes.choose(0)) == (Encoding.IDENTITY, Encoding.PLANES)
    assert plain.shape(0) is None
    shape = planes.shape(0)
    assert shape is not None
    assert shape.size == layout.chunk(0).size
    planes.finished(0, shape.size)
