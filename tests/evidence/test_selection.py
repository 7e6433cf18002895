"""Which blocks are recomputed: words that mean something, draws that repeat, shares that add up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import UsageError
from kvsync.evidence.selection import DOUBLING_TOKENS, Selection
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


@given(st.integers(40, 400), st.integers(2, 4))
def test_shares_cost_alike(blocks: int, count: int) -> None:
    made = layout(256 * blocks)

    def cost(share: tuple[int, ...]) -> float:
        return sum(1 + (256 * block + 128) / DOUBLING_TOKENS for block in share)

    costs = [cost(Selection.parse("all", f"{number}/{count}").blocks(made)) for number in range(1, count + 1)]
    assert max(costs) < 1.2 * sum(costs) / count
