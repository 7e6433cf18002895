"""Which chunk is asked of whom: shares of one plan, without any network."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync.errors import NotFoundError, UnavailableError
from kvsync.progress import silent
from kvsync.sync import share as share_module
from kvsync.sync.plan import Plan
from kvsync.sync.share import MAX_GONE, MAX_RESENDS, Share
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import CodedError, IntegrityError
from kvsync_protocol.have import Have
from kvsync_protocol.leaves import Leaf

GONE = NotFoundError("peer.chunk_gone", "not there")
WRONG = IntegrityError("integrity.chunk", "wrong")
STALLED = UnavailableError("peer.stalled", "moves nothing")


def plan_of(leaves: int, own: bytes = b"own") -> Plan:
    return Plan([Leaf(sha256(bytes([n])), 100) for n in range(leaves)], range(leaves), silent, "pull", own)


def finish(share: Share) -> list[int]:
    """Take and finish all that this share is given now."""
    found = []
    while (index := share.take()) is not None:
        share.done(index, 100)
        found.append(index)
    return found


def test_one_provider_is_asked_for_everything_in_order() -> None:
    plan = plan_of(20)
    share = plan.join("one")
    assert finish(share) == list(range(20))
    assert plan.complete
    assert share.is_over


def test_nothing_shares_the_line_with_the_first_block() -> None:
    plan = plan_of(6)
    share = plan.join("one")
    share.leading = 2
    assert [share.take() for _ in range(4)] == [0, 1, None, None]
    share.done(1, 100)
    assert share.take() is None
    share.put_back(0)
    assert [share.take(), share.take()] == [0, None]
    share.arrived(0)  # to be decoded and verified, which needs no line
    assert [share.take(), share.take()] == [2, 3]
    share.done(0, 100)
    assert share.take() == 4


def test_a_chunk_of_the_first_block_that_was_wrong_has_the_line_for_itself_again() -> None:
    share = plan_of(6).join("one")
    share.leading = 2
    assert [share.take(), share.take()] == [0, 1]
    share.arrived(1)
    share.arrived(0)
    share.refused(0, WRONG)
    assert [share.take(), share.take()] == [0, None]


def test_the_first_block_holds_nothing_up_where_several_provide() -> None:
    plan = plan_of(6)
    one, other = plan.join("one"), plan.join("other")
    one.leading = other.leading = 2
    assert None not in [share.take() for share in (one, other, one, other, one, other)]


def test_what_fewest_have_is_taken_first() -> None:
    plan = plan_of(9)
    few, some = plan.join("few", b"1"), plan.join("some", b"2")
    few.learn(Have.of([0, 1, 2, 8], 9))
    some.learn(Have.of([0, 1, 2, 3], 9))
    assert few.take() == 8
    assert some.take() == 3


def test_complete_providers_leave_to_others_still_getting_what_they_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_module, "GRACE_S", 60.0)
    plan = plan_of(40)
    origin, fellow = plan.join("origin", b"o"), plan.join("fellow", b"f")
    fellow.learn(Have.of([0, 1, 2, 3], 40))
    mine = finish(origin)
    other = Plan([plan.leaf(n) for n in range(40)], range(40), silent, "pull", b"f")
    theirs, we = other.join("origin", b"o"), other.join("own", b"own")
    we.learn(Have.of([0, 1, 2, 3], 40))
    assert not set(mine) & {0, 1, 2, 3}
    assert sorted([*mine, *finish(theirs), 0, 1, 2, 3]) == list(range(40))  # each asks for what the other does not
    assert sorted(finish(fellow)) == [0, 1, 2, 3]


def test_without_anything_from_the_others_the_complete_one_is_asked_after_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_module, "GRACE_S", 0.0)
    plan = plan_of(40)
    origin, fellow = plan.join("origin", b"o"), plan.join("fellow", b"f")
    fellow.learn(Have.of([0], 40))
    stopping = threading.Event()
    while not plan.complete:
        assert origin.wait(stopping, 5)
        finish(origin)
    assert origin.chunks == 40


def test_at_the_end_a_slow_chunk_is_asked_for_once_more_and_the_first_copy_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(share_module, "ENDGAME_S", 0.05)
    plan = plan_of(1)
    slow, fast = plan.join("slow", b"1"), plan.join("fast", b"2")
    assert slow.take() == 0
    assert fast.take() is None
    time.sleep(0.1)
    assert fast.take() == 0
    assert slow.take() is None  # nobody asks himself twice
    third = plan.join("third", b"3")
    assert third.take() is None  # and two copies are enough
    fast.done(0, 100)
    assert plan.is_moved(0)
    assert not plan.complete
    slow.done(0, 100)
    assert plan.complete
    assert (plan.chunks_moved, plan.bytes_moved, plan.bytes_wire) == (1, 100, 200)


def test_a_wrong_chunk_is_asked_of_somebody_else_first() -> None:
    plan = plan_of(1)
    liar, honest = plan.join("liar", b"1"), plan.join("honest", b"2")
    assert liar.take() == 0
    liar.refused(0, WRONG)
    assert liar.take() is None
    assert honest.take() == 0
    honest.done(0, 100)
    assert plan.complete


def test_a_provider_alone_is_asked_again_so_often_and_then_given_up() -> None:
    plan = plan_of(1)
    share = plan.join("only")
    for _ in range(MAX_RESENDS):
        assert share.take() == 0
        share.refused(0, WRONG)
    assert share.take() == 0
    with pytest.raises(IntegrityError):
        share.refused(0, WRONG)
    assert share.take() is None
    assert share.ended is not None


def test_a_provider_that_has_not_what_it_says_is_given_up_after_so_many() -> None:
    plan = plan_of(MAX_GONE + 5)
    liar, other = plan.join("liar", b"1"), plan.join("other", b"2")
    for _ in range(MAX_GONE):
        index = liar.take()
        assert index is not None
        liar.gone(index, GONE)
        assert not liar.has(index)
    index = liar.take()
    assert index is not None
    with pytest.raises(NotFoundError):
        liar.gone(index, GONE)
    assert len(finish(other)) == MAX_GONE + 5


STEPS = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "done", "back", "wrong", "gone", "end"])))


@given(st.lists(st.frozensets(st.integers(0, 11)), min_size=3, max_size=3), STEPS)
def test_whatever_goes_wrong_each_chunk_is_moved_once_or_waits(
    haves: list[frozenset[int]], steps: list[tuple[int, str]]
) -> None:
    plan = plan_of(12)
    shares = [plan.join(f"peer{n}", bytes([n])) for n in range(4)]
    for share, have in zip(shares, haves, strict=False):
        share.learn(Have.of(have, 12))
    taken: dict[int, list[int]] = {n: [] for n in range(4)}
    moved: Counter[int] = Counter()
    for number, step in steps:
        share, own = shares[number], taken[number]
        try:
            if step == "take":
                index = share.take()
                if index is not None:
                    assert share.has(index)
                    assert index not in own
                    own.append(index)
            elif step == "end":
                share.end(STALLED)
                while own:
                    share.put_back(own.pop())
            elif own:
                index = own.pop()
                if step == "done":
                    moved[index] += 1
                    share.done(index, 100)
                elif step == "back":
                    share.put_back(index)
                elif step == "wrong":
                    share.refused(index, WRONG)
                else:
                    share.gone(index, GONE)
        except CodedError:
            assert share.ended is not None
        under_way = {index for indices in taken.values() for index in indices}
        assert set(plan.under_way) == under_way
        assert set(plan.waiting) | under_way | set(moved) == set(range(12))
        assert not set(plan.waiting) & (under_way | set(moved))
        assert plan.chunks_moved == len(moved)
    assert plan.bytes_moved == 100 * len(moved)
