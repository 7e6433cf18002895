"""Which blocks are recomputed: words that mean something, draws that repeat, shares that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import UsageError
from kvsync.evidence.selection import Selection, block_cost
from kvsync_protocol.layout import DType, Group, LayerKind, Layout

GROUPS = (Group("full", LayerKind.FULL, (0,), 1, 4, 4, DType.F32),)


def layout(tokens: int, block_tokens: int = 256) -> Layout:
    return Layout(tokens, block_tokens, GROUPS, vocab=32, logits_dtype=DType.F32)


@pytest.mark.parametrize("text", ["", "0", "-1", "3.5", "0%", "101%", "10 %", "half", "ALL", "1e3", "٣", "9" * 10])
def test_words_that_name_no_blocks_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Selection.parse(text)
    assert caught.value.code == "audit.blocks"


@pytest.mark.parametrize("text", ["", "0/2", "3/2", "1/0", "1", "1/2/3", "-1/2", "a/b", "1 / 2"])
def test_words_that_are_no_share_are_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        Selection.parse("all", text)
    assert caught.value.code == "audit.share"


def test_a_share_of_a_draw_needs_a_seed_and_no_more_sharers_than_blocks() -> None:
    with pytest.raises(UsageError) as caught:
        Selection.parse("3", "1/2")
    assert caught.value.code == "audit.share"
    with pytest.raises(UsageError) as caught:
        Selection.parse("all", "1/4").blocks(layout(3 * 256))
    assert caught.value.code == "audit.share"


@given(st.integers(1, 200_000), st.integers(1, 100), st.integers(0, 2**64))
def test_a_part_is_rounded_up_and_a_draw_repeats(tokens: int, percent: int, seed: int) -> None:
    made = layout(tokens)
    blocks = Selection.parse(f"{percent}%", seed=seed).blocks(made)
    assert blocks == Selection.parse(f"{percent}%", seed=seed).blocks(made)
    assert 100 * (len(blocks) - 1) < percent * made.blocks <= 100 * len(blocks)
    assert list(blocks) == sorted(set(blocks))
    assert set(blocks) <= set(range(made.blocks))


def test_more_blocks_than_there_are_means_all() -> None:
    assert Selection.parse("99").blocks(layout(700)) == (0, 1, 2)


@given(st.integers(1, 60_000), st.integers(1, 40))
def test_shares_are_disjoint_and_cover_everything(tokens: int, count: int) -> None:
    made = layout(tokens)
    count = min(count, made.blocks)
    shares = [Selection.parse("all", f"{number}/{count}").blocks(made) for number in range(1, count + 1)]
    assert [block for share in shares for block in share] == list(range(made.blocks))
    assert all(shares)


@given(st.integers(40, 400), st.integers(2, 4), st.integers(1, 8), st.none() | st.integers(2, 4096))
def test_shares_cost_alike(blocks: int, count: int, heads: int, window: int | None) -> None:
    kind = LayerKind.FULL if window is None else LayerKind.SLIDING
    groups = (Group("some", kind, tuple(range(30)), heads, 64, 64, DType.F32, window=window),)
    made = Layout(256 * blocks, 256, groups, vocab=32, logits_dtype=DType.F32)
    costs = [
        sum(block_cost(made, block) for block in Selection.parse("all", f"{number}/{count}").blocks(made))
        for number in range(1, count + 1)
    ]
    assert max(costs) < 1.2 * sum(costs) / count


def test_a_window_bounds_what_later_blocks_cost_and_a_partial_block_costs_its_part() -> None:
    groups = (Group("some", LayerKind.SLIDING, (0,), 2, 64, 64, DType.F32, window=512),)
    made = Layout(256 * 20 + 64, 256, groups, vocab=32, logits_dtype=DType.F32)
    assert block_cost(made, 0) < block_cost(made, 1) < block_cost(made, 4) == block_cost(made, 19)
    assert block_cost(made, 20) == block_cost(made, 19) / 4
