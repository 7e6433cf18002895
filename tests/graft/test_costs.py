"""What grafts and computations cost here is learned from those that happened, and decides which of the two it is."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvsync
from kvsync.config import Home, Settings
from kvsync.graft.costs import MAX_AGE_S, MAX_MODELS, SAVE_EVERY, Costs, parse_costs
from kvsync.graft.decision import AUTO, GRAFT, NEGLIGIBLE_S, NEVER, RECOMPUTE, decide
from kvsync.graft.trend import Trend
from kvsync.keys import NodeKeys
from kvsync_protocol.errors import ProtocolError
from tests.graft.bench import BLOCK, words

NOW = 1_800_000_000
parts = st.floats(0, 1e9)
observations = st.lists(st.tuples(parts, parts, st.floats(0, 1e6)), max_size=12)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "node")
    found.create()
    NodeKeys.create(found)
    return found


def costs_of(home: Home, now: float = NOW) -> Costs:
    return Costs(home, clock=lambda: now)


def trend_of(seen: list[tuple[float, float, float]]) -> Trend:
    trend = Trend()
    for observation in seen:
        trend = trend.learn(*observation)
    return trend


@given(observations, parts, parts)
def test_a_prediction_is_finite_never_negative_and_grows_with_the_work(seen, first, second):
    trend = trend_of(seen)
    predicted = trend.predict(first, second)
    assert math.isfinite(predicted)
    assert predicted >= 0
    assert trend.predict(first * 2, second) >= predicted
    assert trend.predict(first, second * 2 + 1) >= predicted


@given(observations)
def test_a_trend_reads_back_what_it_spells(seen):
    trend = trend_of(seen)
    assert Trend.parse(trend.spell()) == trend


@given(st.floats(1e-9, 1e-3), st.floats(1e-3, 10), st.lists(st.integers(1, 10**9), min_size=2, unique=True))
def test_what_follows_the_rule_exactly_is_found_again(per_byte, overhead, sizes):
    trend = trend_of([(size, 1.0, per_byte * size + overhead) for size in sizes])
    for size in sizes:
        truth = per_byte * size + overhead
        low, high = min(sizes), max(sizes)
        if high > 2 * low:  # else the two parts are hardly told apart
            assert trend.predict(size, 1.0) == pytest.approx(
                truth, rel=0.05, abs=overhead * 0.05 + 1e-6 * max(1, truth)
            )


@given(
    st.binary() | st.recursive(st.none() | st.text() | st.integers(), lambda x: st.lists(x)).map(str).map(str.encode)
)
def test_any_bytes_are_costs_or_a_protocol_error(data):
    with contextlib.suppress(ProtocolError):
        assert isinstance(parse_costs(data), dict)


@given(
    st.lists(
        st.lists(st.text("0123456789.e-", max_size=12) | st.sampled_from(["0", "1e0", "2.5e3", "-1e0"]), max_size=6)
    )
)
def test_figures_that_are_no_sums_are_refused(rows):
    for row in rows:
        try:
            trend = Trend.parse(row)
        except ProtocolError:
            continue
        assert math.isfinite(trend.predict(1e6, 1.0))
        assert trend.predict(1e6, 1.0) >= 0


def test_what_was_learned_is_there_after_a_restart_and_the_latest_counts_most(home, make_fingerprints):
    pair = make_fingerprints()
    costs = costs_of(home)
    for _ in range(5):
        costs.prefilled(pair, 0, 1000, 10.0)
        costs.restored(pair, 10**8, 1.0)
    for _ in range(20):
        costs.restored(pair, 10**8, 0.1)
    costs.save()
    again = costs_of(home).of(pair)
    assert again == costs.of(pair)
    assert again.prefill_s(0, 500) == pytest.approx(5.0)
    assert again.restore_s(10**8) == pytest.approx(0.1, rel=0.15)
    assert again.tokens_per_s == pytest.approx(100)


def test_later_tokens_cost_more_once_that_was_seen(home, make_fingerprints):
    pair, costs = make_fingerprints(), costs_of(home)
    for start, seconds in ((0, 1.0), (4000, 2.0), (8000, 3.0)):
        costs.prefilled(pair, start, start + 1000, seconds)
    cost = costs.of(pair)
    assert cost.prefill_s(8000, 9000) > 2 * cost.prefill_s(0, 1000)


CHILD = """
import sys
from kvsync.config import Home
from kvsync.graft.costs import Costs
from kvsync_protocol.fingerprint import Fingerprint, FingerprintKind, Fingerprints
costs = Costs(Home.locate(__import__("pathlib").Path(sys.argv[1])))
for number in range(20):
    one = Fingerprint(FingerprintKind.COMPATIBILITY, {"weights": f"{sys.argv[2]} {number}"})
    costs.prefilled(Fingerprints(one, Fingerprint(FingerprintKind.NUMERICS, {"engine": "e"})), 0, 100, 1.0)
    costs.save()
"""


def test_processes_add_to_each_others_observations(home):
    children = [subprocess.Popen([sys.executable, "-c", CHILD, str(home.root), name]) for name in ("a", "b", "c")]
    assert [child.wait(60) for child in children] == [0, 0, 0]
    assert costs_of(home).measured() == 60


def test_the_file_stays_small(home, make_fingerprints):
    costs = costs_of(home)
    for number in range(MAX_MODELS + 10):
        costs.prefilled(make_fingerprints(model=f"m{number}"), 0, 1, 1.0)
    costs.save()
    known = parse_costs(home.costs_file.read_bytes())
    assert len(known) == MAX_MODELS
    assert costs_of(home).of(make_fingerprints(model=f"m{MAX_MODELS + 9}")).prefilled
    assert not costs_of(home).of(make_fingerprints(model="m0")).prefilled


def test_a_damaged_file_is_forgotten_and_written_anew(home, make_fingerprints):
    home.costs_file.write_bytes(b'{"version": 1, "costs": [{]}')
    costs = costs_of(home)
    assert costs.measured() == 0
    costs.prefilled(make_fingerprints(), 0, 10, 1.0)
    costs.save()
    assert len(parse_costs(home.costs_file.read_bytes())) == 1


def test_a_file_that_cannot_be_written_costs_nothing_else(home, make_fingerprints):
    home.costs_file.mkdir()
    costs = costs_of(home)
    for _ in range(SAVE_EVERY + 1):
        costs.prefilled(make_fingerprints(), 0, 10, 1.0)
    costs.save()
    assert costs.of(make_fingerprints()).prefill_s(0, 10) == pytest.approx(1.0)


def measured(home: Home, pair, *, token_s: float, overhead_s: float, now: float = NOW) -> Costs:
    costs = costs_of(home, now)
    for tokens in (BLOCK, 20 * BLOCK):
        costs.prefilled(pair, 0, tokens, token_s * tokens)
    for size in (10**4, 10**6):
        costs.restored(pair, size, overhead_s)
    return costs


def test_what_decides(home, make_fingerprints):
    pair = make_fingerprints()
    slow = measured(home, pair, token_s=0.01, overhead_s=1.0)
    short, long = decide(AUTO, slow, pair, 16, 10**4), decide(AUTO, slow, pair, 320, 10**6)
    assert (short.choice, long.choice) == (RECOMPUTE, GRAFT)
    assert short.restore_s == pytest.approx(1.0, rel=0.05)
    assert short.prefill_s == pytest.approx(0.16, rel=0.05)
    assert decide(NEVER, slow, pair, 320, 10**6).choice == RECOMPUTE
    assert decide("always", slow, pair, 16, 10**4).choice == GRAFT
    assert decide(AUTO, None, pair, 16, 10**4).choice == GRAFT
    assert decide(AUTO, slow, make_fingerprints(model="another"), 16, 10**4).choice == GRAFT
    quick = measured(home, make_fingerprints(model="q"), token_s=1e-9, overhead_s=NEGLIGIBLE_S / 2)
    assert decide(AUTO, quick, make_fingerprints(model="q"), 16, 10**4).choice == GRAFT


def test_old_measurements_and_such_of_the_future_decide_nothing(home, make_fingerprints):
    pair = make_fingerprints()
    measured(home, pair, token_s=0.01, overhead_s=1.0).save()
    for later, choice in ((0, RECOMPUTE), (MAX_AGE_S, RECOMPUTE), (MAX_AGE_S + 1, GRAFT), (-5, GRAFT)):
        assert decide(AUTO, costs_of(home, NOW + later), pair, 16, 10**4).choice == choice


def test_one_block_on_a_slow_disk_is_computed_again_and_many_are_grafted(bench, home):
    """The disk takes a second whatever is read, the model 10 ms a token."""
    bench.deposit(words(300))
    costs = measured(home, bench.engine.fingerprints, token_s=0.01, overhead_s=1.0)
    one, many = [*words(BLOCK), *words(5, seed=4)], [*words(280), *words(5, seed=4)]
    short = bench.graft(one, when=AUTO, costs=costs)
    assert short.report.decision.choice == RECOMPUTE
    assert short.report.refused is None
    assert (short.report.mode, short.report.tokens_grafted, short.report.tokens_recomputed) == ("miss", 0, len(one))
    assert bench.continued(short) == bench.fresh(one, ())
    long = bench.graft(many, when=AUTO, costs=costs)
    assert long.report.decision.choice == GRAFT
    assert long.report.tokens_grafted == 272
    assert bench.continued(long) == bench.fresh(many, ())
    assert bench.graft(one, costs=costs).report.tokens_grafted == BLOCK  # without a word of it, grafts are made


def test_never_computes_and_still_is_exact(bench):
    bench.deposit(words(100))
    tokens = words(110)
    found = bench.graft(tokens, when=NEVER)
    assert found.report.decision.as_dict()["decision"] == RECOMPUTE
    assert bench.continued(found) == bench.fresh(tokens, ())


def test_a_client_learns_from_what_it_does(home, tiny_model_dir):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir).eval()
    with kvsync.Client(home.root) as client:
        stored = client.deposit(model, words(600))
        report = client.graft(model, words(620)).report
        assert report.decision.why == "not measured yet"
        again = client.graft(model, words(620)).report
    assert again.decision.restore_s is not None
    assert again.decision.prefill_s is not None
    assert json.loads(json.dumps(again.as_dict()))["predicted"]["restore_s"] >= 0
    cost = Costs(home).of(stored.manifest.fingerprints)
    assert cost.prefilled
    assert cost.restored


@pytest.mark.parametrize(("when", "grafted"), [("always", 600), ("never", 0)])
def test_the_setting_decides_for_a_client(home, tiny_model_dir, when, grafted):
    from transformers import AutoModelForCausalLM

    Settings(graft_when=when).save(home)
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir).eval()
    with kvsync.Client(home.root) as client:
        client.deposit(model, words(600))
        assert client.graft(model, words(620)).report.tokens_grafted == grafted
