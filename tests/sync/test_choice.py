"""The choice of an encoding: fixed by the settings, or by how fast chunks have been seen to arrive."""

from __future__ import annotations

import heapq
from collections import Counter

import pytest

from kvsync.sync.choice import MIN_BYTES, STAY, TRY, EncodingChoice, StreamEncoder
from kvsync_protocol.bulk import Encoding
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.limits import MiB

SIZE = 4 * MiB
SMALLER = 1.5


class Line:
    """Streams that share a line of `rate` bytes a second; a chunk in planes takes `codec_s` at both ends before and
    after, while the line is free for others."""

    def __init__(self, setting: str, *, streams: int = 4) -> None:
        self.now = 0.0
        self.choice = EncodingChoice(setting, lambda: self.now)
        self.streams = streams

    def run(self, chunks: int, *, rate: float, codec_s: float = 0.03, size: int = SIZE) -> Counter[Encoding]:
        """Move so many chunks; what they went as."""
        used: Counter[Encoding] = Counter()
        free_at = self.now
        events = [(self.now, stream, Encoding.IDENTITY, False) for stream in range(self.streams)]
        while used.total() < chunks:
            self.now, stream, way, arrived = heapq.heappop(events)
            if arrived:
                self.choice.finished(way, size)
                used[way] += 1
            way = self.choice.take()
            codec = codec_s if way is Encoding.PLANES else 0.0
            begins = max(self.now + codec / 2, free_at)
            free_at = begins + size / (SMALLER if codec else 1.0) / rate
            heapq.heappush(events, (free_at + codec / 2, stream, way, True))
        return used


SLOW, FAST = 120e6, 2e9


@pytest.mark.parametrize("way", [Encoding.IDENTITY, Encoding.ZSTD, Encoding.PLANES])
def test_a_fixed_setting_never_changes(way: Encoding) -> None:
    line = Line(way.name.lower())
    assert line.run(50, rate=SLOW) == line.run(50, rate=FAST) == Counter({way: 50})


@pytest.mark.parametrize("streams", [1, 2, 4, 8])
def test_auto_settles_on_what_moves_content_faster_for_all_streams_together(streams: int) -> None:
    line = Line("auto", streams=streams)
    line.run(2 * TRY + 3 * streams, rate=SLOW, codec_s=0.004)
    assert line.run(STAY // 2, rate=SLOW, codec_s=0.004)[Encoding.PLANES] == STAY // 2
    line = Line("auto", streams=streams)
    line.run(2 * TRY + 3 * streams, rate=FAST)
    assert line.run(STAY // 2, rate=FAST)[Encoding.IDENTITY] == STAY // 2


def test_what_a_codec_costs_a_stream_does_not_count_while_others_fill_the_line() -> None:
    """The encoded chunk takes its own stream longer, 30 ms and 23 instead of 35, and is worth it for four."""
    line = Line("auto", streams=4)
    line.run(2 * TRY + 12, rate=SLOW, codec_s=0.03)
    assert line.run(STAY // 2, rate=SLOW, codec_s=0.03)[Encoding.PLANES] == STAY // 2


def test_auto_notices_that_the_link_has_changed() -> None:
    line = Line("auto")
    line.run(3 * STAY, rate=FAST)
    line.run(2 * STAY, rate=SLOW)
    assert line.run(STAY // 2, rate=SLOW)[Encoding.PLANES] >= STAY // 2 - TRY - 4
    line.run(2 * STAY, rate=FAST)
    assert line.run(STAY // 2, rate=FAST)[Encoding.IDENTITY] >= STAY // 2 - TRY - 4


def test_the_slower_way_has_few_turns() -> None:
    used = Line("auto").run(20 * STAY, rate=SLOW)
    assert used[Encoding.PLANES] > 0.85 * used.total()


def test_streams_that_begin_at_once_go_plain() -> None:
    choice = EncodingChoice("auto")
    assert {choice.take() for _ in range(16)} == {Encoding.IDENTITY}


def test_small_chunks_teach_nothing() -> None:
    assert Line("auto").run(10 * STAY, rate=SLOW, size=MIN_BYTES - 1).keys() == {Encoding.IDENTITY}


def test_a_clock_that_stands_still_is_no_division_by_zero() -> None:
    choice = EncodingChoice("auto", lambda: 1.0)
    for _ in range(5 * STAY):
        choice.finished(choice.take(), SIZE)


def test_a_stream_knows_the_shape_only_of_what_it_asked_for_in_planes() -> None:
    layout = Layout(8, 4, (Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.BF16),), 9, DType.F32)
    plain, planes = (StreamEncoder(EncodingChoice(setting), layout) for setting in ("identity", "planes"))
    assert (plain.choose(0), planes.choose(0)) == (Encoding.IDENTITY, Encoding.PLANES)
    assert plain.shape(0) is None
    shape = planes.shape(0)
    assert shape is not None
    assert shape.size == layout.chunk(0).size
    planes.finished(0, shape.size)
