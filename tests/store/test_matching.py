"""Matching: the longest shared blocks, the longest whole artifact, under the right fingerprints only."""

from __future__ import annotations

import tempfile
from itertools import islice
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvsync.store import Store, StoreLimits
from kvsync_protocol.prefix import block_keys, start_key
from kvsync_protocol.schedule import Schedule


def keys(prints, tokens, schedule=Schedule(16)):  # noqa: B008  frozen
    return list(block_keys(start_key(prints), tokens, schedule))


def test_the_longest_shared_run_of_full_blocks_is_found(store, make_artifact, make_fingerprints, fill):
    prints = make_fingerprints()
    base = make_artifact(1, 70)
    short = make_artifact(2, 40, head=base.token_ids[:32])
    fill(store, base)
    fill(store, short)
    asked = (*base.token_ids[:64], 1, 2, 3)
    assert store.find_prefix(keys(prints, asked)) == (base.id, 4)
    asked = (*short.token_ids[:32], *range(100))
    artifact, blocks = store.find_prefix(keys(prints, asked))
    assert (artifact in (base.id, short.id), blocks) == (True, 2)
    assert store.find_prefix(keys(prints, range(100))) is None
    assert store.find_prefix([]) is None


def test_a_partial_last_block_is_not_a_shared_block(store, make_artifact, make_fingerprints, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    own = keys(make_fingerprints(), artifact.token_ids, artifact.manifest.schedule)
    assert len(own) == 3
    assert store.find_prefix(own) == (artifact.id, 2)


def test_blocks_cut_elsewhere_are_not_shared(store, make_artifact, make_fingerprints, fill):
    artifact = make_artifact(1, 40, boundaries=(20,))
    fill(store, artifact)
    plain = keys(make_fingerprints(), artifact.token_ids)
    assert store.find_prefix(plain) == (artifact.id, 1)
    assert store.find_prefix(keys(make_fingerprints(), artifact.token_ids, Schedule(16, (20,)))) == (artifact.id, 2)


def test_the_longest_whole_artifact_is_found(store, make_artifact, make_fingerprints, fill):
    prints = make_fingerprints()
    long = make_artifact(1, 50)
    short = make_artifact(2, 21, head=long.token_ids[:21])
    fill(store, long)
    fill(store, short)
    assert store.find_whole((*long.token_ids, 9, 9), prints) == long.id
    assert store.find_whole(long.token_ids, prints) == long.id
    assert store.find_whole(long.token_ids[:49], prints) == short.id
    assert store.find_whole(short.token_ids, prints) == short.id
    assert store.find_whole(short.token_ids[:20], prints) is None
    assert store.find_whole((), prints) is None


def test_other_fingerprints_match_nothing(store, make_artifact, make_fingerprints, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    for other in (make_fingerprints(model="another"), make_fingerprints(host="elsewhere")):
        assert store.find_whole(artifact.token_ids, other) is None
        assert store.find_prefix(keys(other, artifact.token_ids)) is None


def test_pairs_of_fingerprints_are_listed_for_the_canary_policy(store, make_artifact, make_fingerprints, fill):
    here, there = make_fingerprints(), make_fingerprints(host="elsewhere")
    one, two = make_artifact(1, 40), make_artifact(1, 40, prints=there)
    fill(store, one)
    fill(store, two)
    fill(store, make_artifact(2, 40))
    pairs = store.fingerprints()
    assert len(pairs) == 2
    assert all(pair in pairs for pair in (here, there))
    accepted = [pair for pair in pairs if here.check(pair, accept="canary") or pair == here]
    assert {store.find_whole(one.token_ids, pair) for pair in accepted} == {one.id, two.id}


def test_a_removed_artifact_matches_nothing(store, make_artifact, make_fingerprints, fill):
    artifact = make_artifact(1, 40)
    fill(store, artifact)
    store.remove(artifact.id)
    assert store.find_whole(artifact.token_ids, make_fingerprints()) is None
    assert store.find_prefix(keys(make_fingerprints(), artifact.token_ids)) is None
    assert store.fingerprints() == []


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=5), st.data())
def test_both_searches_agree_with_comparing_all(tmp_path, make_artifact, make_fingerprints, fill, texts, data):
    prints = make_fingerprints()
    asked = tuple(data.draw(st.lists(st.integers(0, 1), max_size=12)))
    with Store.open(Path(tempfile.mkdtemp(dir=tmp_path)), StoreLimits(free_floor_bytes=0)) as store:
        made = [make_artifact(0, len(text), head=tuple(text), block_tokens=2) for text in texts]
        for artifact in made:
            fill(store, artifact)
        whole = [a.token_ids for a in made if asked[: len(a.token_ids)] == a.token_ids]
        found = store.find_whole(asked, prints)
        assert (store.artifact(found).tokens() if found else ()) == max(whole, key=len, default=())
        wanted = keys(prints, asked, Schedule(2))
        shared = 0
        for artifact in made:
            own = islice(keys(prints, artifact.token_ids, artifact.manifest.schedule), len(artifact.token_ids) // 2)
            pairs = zip(own, wanted, strict=False)
            shared = max(shared, sum(1 for a, b in pairs if a == b))
        match = store.find_prefix(wanted)
        assert (match[1] if match else 0) == shared
