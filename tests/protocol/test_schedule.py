"""The canonical schedule: dense, absolute, and the same from every cut on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsync_protocol.errors import MalformedError
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
from kvsync_protocol.limits import MAX_BOUNDARIES, MAX_TOKENS
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.schedule import Schedule
from tests.protocol.strategies import pairs, schedules


@given(schedules(), st.integers(0, 100), st.integers(0, 100))
def test_segments_are_dense_and_end_at_cuts_only(schedule: Schedule, start: int, stop: int) -> None:
    found = list(schedule.segments(start, stop))
    at = start
    for begin, end in found:
        assert begin == at < end <= begin + schedule.block_tokens
        at = end
    assert at == max(start, stop)
    for _, cut in found[:-1]:
        assert cut % schedule.block_tokens == 0 or cut in schedule.boundaries


@given(schedules(), st.integers(0, 100))
def test_every_cut_is_kept(schedule: Schedule, stop: int) -> None:
    ends = {end for _, end in schedule.segments(0, stop)}
    assert {place for place in schedule.boundaries if place <= stop} <= ends
    assert set(range(schedule.block_tokens, stop + 1, schedule.block_tokens)) <= ends


@given(schedules(), st.integers(0, 100), st.data())
def test_after_a_cut_the_calls_are_those_of_the_whole_run(schedule: Schedule, stop: int, data: st.DataObject) -> None:
    whole = list(schedule.segments(0, stop))
    cut = data.draw(st.sampled_from([0, *(end for _, end in whole)]))
    assert list(schedule.segments(cut, stop)) == [segment for segment in whole if segment[0] >= cut]


@given(schedules(), st.integers(1, 100))
def test_a_boundary_is_added_once_and_never_at_a_blocks_end(schedule: Schedule, place: int) -> None:
    cut = schedule.with_boundary(place)
    assert cut.with_boundary(place) == cut
    assert schedule.next_cut(place - 1) == place or cut.next_cut(place - 1) == place
    assert all(boundary % cut.block_tokens for boundary in cut.boundaries)


@given(schedules(), st.integers(0, 20))
def test_cuts_inside_a_block_are_the_boundaries_that_fall_into_it(schedule: Schedule, block: int) -> None:
    begin = block * schedule.block_tokens
    inside = [place for place in schedule.boundaries if begin < place < begin + schedule.block_tokens]
    assert [begin + cut for cut in schedule.cuts_inside(block)] == inside


def test_as_many_boundaries_as_allowed_are_looked_up_without_reading_all_of_them() -> None:
    schedule = Schedule(256, tuple(256 * number + 1 for number in range(MAX_BOUNDARIES)))
    blocks = MAX_TOKENS // 256
    assert all(schedule.cuts_inside(block) == (1,) for block in range(blocks))
    with pytest.raises(MalformedError) as caught:
        Schedule(255, tuple(2 * number + 1 for number in range(MAX_BOUNDARIES + 1)))
    assert caught.value.code == "schedule.boundaries"


@given(pairs, schedules(60), st.lists(st.integers(0, 9), min_size=1, max_size=60), st.data())
def test_documents_with_a_common_start_share_the_keys_of_their_common_blocks(
    fingerprints: Fingerprints, schedule: Schedule, tokens: list[int], data: st.DataObject
) -> None:
    start = start_key(fingerprints)
    keys = list(block_keys(start, tokens, schedule))
    longer = list(block_keys(start, [*tokens, 1, 2, 3], schedule))
    shared = len(tokens) // schedule.block_tokens
    assert len(keys) == -(-len(tokens) // schedule.block_tokens)
    assert keys[:shared] == longer[:shared]
    assert keys[shared:] != longer[shared : len(keys)] or shared == len(keys)

    at = data.draw(st.integers(0, len(tokens) - 1))
    other = [*tokens[:at], tokens[at] + 10, *tokens[at + 1 :]]
    changed = list(block_keys(start, other, schedule))
    block = at // schedule.block_tokens
    assert keys[:block] == changed[:block]
    assert not set(keys[block:]) & set(changed[block:])


def test_equal_tokens_under_another_cut_salt_or_fingerprint_have_other_keys() -> None:

    def pair(weights: str, engine: str) -> Fingerprints:
        return Fingerprints(
            Fingerprint(FingerprintKind.COMPATIBILITY, {"x": weights}),
            Fingerprint(FingerprintKind.NUMERICS, {"x": engine}),
        )

    tokens = list(range(8))
    keys = [
        tuple(block_keys(start_key(pair(weights, engine), salt), tokens, Schedule(4, cuts)))
        for weights, engine, salt, cuts in [
            ("a", "b", b"", ()),
            ("b", "a", b"", ()),
            ("a", "b", b"tenant", ()),
            ("a", "b", b"", (2,)),
        ]
    ]
    assert len({key for pair_of_keys in keys for key in pair_of_keys}) == 8
