"""Samples are the same on every host and vary enough from the first few on."""

from __future__ import annotations

import dataclasses

import pytest

from kvsync.errors import UsageError
from kvsync.evidence.samples import DECODE_STEPS, GENERATOR, Sample, check_drawn, draw, generator, text
from kvsync_protocol.digest import sha256
from kvsync_protocol.errors import IntegrityError, VersionError
from kvsync_protocol.layout import DType, Group, LayerKind, Layout
from kvsync_protocol.sample import GraftMode, Settings
from kvsync_protocol.state import StateGroup, StatePart

BLOCK = 256
SETTINGS = Settings("m", GENERATOR, 50, 1, 8192, DECODE_STEPS, BLOCK)


def test_text_and_samples_of_this_generator_never_change() -> None:
    assert sha256(text().encode()).hex == TEXT
    drawn = draw(SETTINGS)
    assert sha256(repr([dataclasses.astuple(sample) for sample in drawn]).encode()).hex == DRAWN
    assert drawn[:2] == [
        Sample(0, GraftMode.WHOLE, drawn[0].document_start, 352, 352, drawn[0].new_start, 3),
        Sample(1, GraftMode.PREFIX, drawn[0].document_start, 352, 256, drawn[1].new_start, 1),
    ]


TEXT = "edcb239024c29a7149a04566bcc4cc29d51437d3b301f2d121623100c68069c0"
DRAWN = "f4438508965799843f9a1fdce4085694de1dce28093e4da67affd0fd0f258123"


def test_fifty_samples_hold_every_kind_and_mostly_short_ones() -> None:
    drawn = draw(SETTINGS)
    whole = [sample for sample in drawn if sample.mode is GraftMode.WHOLE]
    assert 15 <= len(drawn) - len(whole) <= 35
    assert any(sample.document < BLOCK for sample in whole)
    assert any(sample.document % BLOCK == 0 for sample in whole)
    assert any(BLOCK < sample.document < 2 * BLOCK for sample in whole)
    assert any(sample.shared < sample.document - BLOCK for sample in drawn)
    assert {1 <= sum(sample.document > 2 * 512 for sample in drawn) <= 15} == {True}
    assert sum(100 <= sample.document <= 1000 for sample in drawn) > 35
    for low, high in ((1, 2), (2, 17), (17, 80), (2 * BLOCK, 3 * BLOCK)):
        assert any(low <= sample.new < high for sample in drawn), (low, high)


def test_six_samples_already_vary() -> None:
    drawn = draw(dataclasses.replace(SETTINGS, count=6))
    assert {sample.mode for sample in drawn} == set(GraftMode)
    assert any(sample.document > 1024 for sample in drawn)
    assert any(sample.document < BLOCK for sample in drawn)
    assert any(sample.new > 2 * BLOCK for sample in drawn)


def test_fewer_samples_are_the_first_of_more_and_another_seed_gives_others() -> None:
    assert draw(dataclasses.replace(SETTINGS, count=20)) == draw(SETTINGS)[:20]
    assert draw(dataclasses.replace(SETTINGS, seed=2)) != draw(SETTINGS)


@pytest.mark.parametrize("limit", [2 * BLOCK + DECODE_STEPS, 1024, 2048])
def test_every_sample_fits_a_short_model(limit: int) -> None:
    for sample in draw(dataclasses.replace(SETTINGS, limit=limit, count=200)):
        assert sample.new >= 1
        assert 1 <= sample.shared <= sample.document
        assert max(sample.document, sample.shared + sample.new) + DECODE_STEPS <= limit


@pytest.mark.parametrize("index", range(50))
def test_a_sample_s_record_is_one_that_the_scorer_takes(index: int) -> None:
    pool = [(17 * place) % 1000 for place in range(6000)]
    sample = draw(SETTINGS)[index]
    assert len(sample.sequence(pool)) == sample.shared + sample.new
    sample.inputs(pool, sha256(b""), BLOCK).check(SETTINGS, index)


def _layout(tokens: int, *every: int) -> Layout:
    states = (StatePart("state", (2, 3), DType.F32),)
    groups = [StateGroup(f"s{n}", (n,), states, each) for n, each in enumerate(every)]
    full = Group("full", LayerKind.FULL, (len(every),), 1, 4, 4, DType.F32)
    return Layout(tokens, BLOCK, (*groups, full), 131, DType.F32)


def test_prefix_grafts_of_a_model_with_states_end_where_a_snapshot_stands() -> None:
    assert generator(_layout(BLOCK)) == generator(_layout(BLOCK, 1)) == GENERATOR
    for every in ((4,), (2,), (2, 3)):
        name = generator(_layout(BLOCK, *every))
        drawn = draw(dataclasses.replace(SETTINGS, generator=name, count=200))
        prefixes = [sample for sample in drawn if sample.mode is GraftMode.PREFIX]
        assert len(prefixes) > 50
        for sample in prefixes:
            assert 0 < sample.shared < sample.document
            assert _layout(sample.document, *every).restorable(sample.shared) == sample.shared
        assert [sample.index for sample in drawn] == list(range(200))
        check_drawn(
            {**SETTINGS.as_json(), "generator": name, "count": 200},
            [sample.inputs([0] * 6000, sha256(b""), BLOCK).as_json() for sample in drawn],
        )
    assert draw(dataclasses.replace(SETTINGS, generator=f"{GENERATOR} snapshots 1")) == draw(SETTINGS)


def test_samples_that_somebody_chose_are_noticed() -> None:
    pool = [(17 * place) % 1000 for place in range(6000)]
    run = SETTINGS.as_json()
    records = [sample.inputs(pool, sha256(b""), BLOCK).as_json() for sample in draw(SETTINGS)]
    check_drawn(run, records)
    for name in ("another", "kvsync-samples/1 snapshots 0", "kvsync-samples/1 snapshots 4 "):
        with pytest.raises(VersionError) as unknown:
            check_drawn({**run, "generator": name}, records)
        assert unknown.value.code == "version.generator"
    for change in ({"seed": 2}, {"limit": 1024}, {"limit": 500}):
        with pytest.raises(IntegrityError) as caught:
            check_drawn({**run, **change}, records)
        assert caught.value.code == "receipt.score"
    with pytest.raises(IntegrityError, match="record 49 is not"):
        check_drawn(run, [*records[:-1], {**records[-1], "new": 9}])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"count": 0}, "samples.count"),
        ({"count": 10**6}, "samples.count"),
        ({"limit": 500}, "samples.limit"),
    ],
)
def test_what_cannot_be_drawn_is_refused(change: dict[str, object], code: str) -> None:
    with pytest.raises(UsageError) as caught:
        draw(dataclasses.replace(SETTINGS, **change))  # type: ignore[arg-type]
    assert caught.value.code == code
